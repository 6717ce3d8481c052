"""Where things lie: the activation arena by liveness, the cache of keys and values, and whether
it all fits this machine.

Offsets only, no allocation. Activations are f32 with rows padded to 64 bytes, so that kernels may
load whole vectors of any width; a buffer is free again after the last op that reads it.
"""

import mmap
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from caldrix.cgroups import groups, read
from caldrix.compile.lower import Lowered
from caldrix.models.graph import AttentionShape, Rows, Value

ALIGN = 64
FLOATS = ALIGN // 4
SPARE_BYTES = 32_000_000  # of address space: stacks of two threads, what a step needs for a moment
UNLIMITED = 1 << 60  # cgroup v1 says a number above this for no limit


def align(n: int, to: int = ALIGN) -> int:
    return -(-n // to) * to


def stride_of(width: int) -> int:
    """Floats between two rows of a value of that width."""
    return align(width, FLOATS)


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Byte offsets of every value's buffer, and the size of it all."""

    offsets: dict[str, int]
    size_bytes: int


def plan_activations(lowered: Lowered, max_rows: int, max_out: int) -> ArenaPlan:
    """First fit by start of life. A value read by an op never shares bytes with one it writes."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    values: dict[str, Value] = {}
    for index, op in enumerate(lowered.ops):
        for value in (*op.reads, *op.writes):
            root = lowered.root(value)
            values[root.name] = root
            first.setdefault(root.name, index)
            last[root.name] = index
    last[lowered.root(lowered.logits).name] = len(lowered.ops)
    offsets: dict[str, int] = {}
    size = 0
    for name in sorted(values, key=lambda n: first[n]):
        n_bytes = _bytes(values[name], max_rows, max_out)
        taken = sorted(
            (offsets[other], offsets[other] + _bytes(values[other], max_rows, max_out))
            for other in offsets
            if last[other] >= first[name]
        )
        offsets[name] = at = _first_gap(taken, n_bytes)
        size = max(size, at + n_bytes)
    return ArenaPlan(offsets, size)


def _bytes(value: Value, max_rows: int, max_out: int) -> int:
    """What its buffer takes: f32[rows, stride], in whole cache lines."""
    rows = max_out if value.rows is Rows.OUTPUT else max_rows
    return align(rows * stride_of(value.width) * 4)


def _first_gap(taken: list[tuple[int, int]], n_bytes: int) -> int:
    at = 0
    for start, end in taken:
        if start - at >= n_bytes:
            break
        at = max(at, end)
    return at


@dataclass(frozen=True, slots=True)
class CachePlan:
    """One layer's keys, then its values, layer after layer; each [n_slots, kv_heads, context,
    dim]."""

    part_bytes: int
    num_layers: int

    @property
    def size_bytes(self) -> int:
        return 2 * self.part_bytes * self.num_layers

    def k_offset(self, layer: int) -> int:
        return 2 * layer * self.part_bytes

    def v_offset(self, layer: int) -> int:
        return (2 * layer + 1) * self.part_bytes


def plan_cache(
    shape: AttentionShape, num_layers: int, n_slots: int, context: int, item_bytes: int
) -> CachePlan:
    """The cache of `num_layers` layers, each number of a key or value taking `item_bytes`."""
    part = n_slots * shape.num_kv_heads * context * shape.head_dim * item_bytes
    return CachePlan(align(part), num_layers)


def memory_limit(mapped_bytes: int = 0, root: Path = Path("/")) -> int | None:
    """Bytes a model may use: the machine's memory, a limit of the process's cgroup or one above, or
    what the limit on its address space leaves, whichever is least; None where none can be read.

    `mapped_bytes` of the model are in the address space already. `root` stands for / so that tests
    can lay out a machine of their own.
    """
    limits = [*_machine_memory(root), *_cgroup_limits(root)]
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft != resource.RLIM_INFINITY:
        limits.append(max(soft - _address_space(root) - SPARE_BYTES + mapped_bytes, 0))
    return min(limits, default=None)


def _address_space(root: Path) -> int:
    """Bytes of address space in use: the interpreter and its libraries take most of it."""
    pages = read(root / "proc/self/statm").partition(" ")[0]
    return int(pages) * mmap.PAGESIZE if pages.isdecimal() else 0


def _machine_memory(root: Path) -> Iterator[int]:
    match = re.search(r"^MemTotal:\s*([0-9]+) kB$", read(root / "proc/meminfo"), re.MULTILINE)
    if match:
        yield int(match[1]) * 1024


def _cgroup_limits(root: Path) -> Iterator[int]:
    for group in groups(root, "memory"):
        text = group.read("memory.max" if group.version == 2 else "memory.limit_in_bytes")
        if text.isdecimal() and int(text) < UNLIMITED:
            yield int(text)
