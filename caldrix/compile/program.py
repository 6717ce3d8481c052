"""A compiled model, ready to step: the plan, its memory, its threads.

`compile_model` runs the passes in order (graph, lowering, weights, memory, emission), refuses
what does not fit before anything is allocated, and hands everything to the native library. Knows
no files' formats beyond tensors, and no text.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from caldrix import native
from caldrix.compile.describe import describe
from caldrix.compile.int8 import quantize_inputs
from caldrix.compile.lower import lower
from caldrix.compile.memory import (
    ArenaPlan,
    CachePlan,
    memory_limit,
    plan_activations,
    plan_cache,
    stride_of,
)
from caldrix.compile.packing import FLAG, Packing, most_bytes, pack, packable
from caldrix.compile.plan import Emitter, Limits, OpNote
from caldrix.compile.weights import WeightPlan
from caldrix.errors import RefusedError, TooLargeError
from caldrix.formats.checkpoint import Checkpoint, Tensor, check_still_whole
from caldrix.formats.dtypes import by_name
from caldrix.models.graph import Graph
from caldrix.models.rope import RopeConfig, scaled_frequencies
from caldrix.units import format_size

# Prompt rows of one step: enough to use a decoded weight panel well, few enough to stop soon.
MAX_ROWS = 256
MAX_OUT = 16


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """`dtype` is f32 or bf16: the type of the cache and of f32 matrices. `activations` is f32, or
    int8 for what quantised weights are multiplied with."""

    dtype: str
    context: int
    n_slots: int
    threads: int
    cpu_isa: str
    activations: str = "f32"
    max_out: int = MAX_OUT
    max_rows: int = MAX_ROWS


@dataclass(frozen=True, slots=True)
class Source:
    """Where weights come from: a checkpoint, its names, and what of it may stay unread."""

    checkpoint: Checkpoint
    rename: Callable[[str], str]
    ignored: re.Pattern[str]
    where: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes by what they are for. `files` are mapped, of which what was packed is not read again;
    `planes` are mapped from a file or made in memory; the rest is allocated."""

    files: int
    planes: int
    weights: int
    cache: int
    activations: int

    @property
    def mapped(self) -> int:
        """What steps read of weights where they lie; in the address space before the rest is."""
        return self.files + self.planes

    @property
    def total(self) -> int:
        return self.mapped + self.weights + self.cache + self.activations


class Program:
    """One model in memory. Not thread-safe but for `cancel`; `logits` rows are valid until the
    next step."""

    def __init__(
        self,
        plan: bytes,
        notes: Sequence[OpNote],
        sizes: Sizes,
        graph: Graph,
        limits: Limits,
        options: CompileOptions,
        weights: WeightPlan,
        logits_offset: int,
    ) -> None:
        self.vocab_size = graph.vocab_size
        self.context = limits.context
        self.n_slots = limits.n_slots
        self.max_rows = limits.max_rows
        self.max_out = limits.max_out
        self.sizes = sizes
        self.notes = tuple(notes)
        self.options = options
        self.plan = plan
        made = native.allocate(max(sizes.weights, 64))
        weights.fill(memoryview(made))
        activations = native.allocate(sizes.activations)
        # No MappedFile is kept: its view must not be in a cycle with the model (see native.Arena).
        self._files = [(f.path, f.mapping, f.size) for f in weights.checkpoint.files]
        mappings = [mapping for _, mapping, _ in self._files]
        if (packed := weights.packed) is not None:
            mappings.append(packed.arena)
            if packed.path is not None:
                self._files.append((packed.path, packed.arena, packed.size_bytes))
        arenas = [None, activations, native.allocate(sizes.cache), made, *mappings]
        self._model = native.Model(plan, arenas, options.cpu_isa, options.threads)
        stride = stride_of(self.vocab_size)
        rows = np.frombuffer(
            activations, np.float32, count=self.max_out * stride, offset=logits_offset
        )
        self.logits: npt.NDArray[np.float32] = rows.reshape(self.max_out, stride)[
            :, : self.vocab_size
        ]

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        out_rows: Sequence[int],
        sampling: Sequence[native.Sampling] | None,
    ) -> list[native.Pick]:
        """Runs the plan for these rows; picks a token for each output row when `sampling` is
        given.

        Row i is token i at position i of slot i; the logits of row out_rows[j] are logits[j].
        Raises native.Cancelled after `cancel`, EngineError for rows that the plan does not take and
        for a weight file that was cut meanwhile.
        """
        self._check_files()
        picks = self._model.step(tokens, positions, slots, out_rows, sampling)
        self._check_files()
        return picks

    def _check_files(self) -> None:
        for path, mapping, size in self._files:
            check_still_whole(path, mapping, size)

    def cancel(self) -> None:
        """Stops the running step at its next op; it raises native.Cancelled."""
        self._model.cancel()

    def close(self) -> None:
        """Ends the threads and lets the memory go."""
        self._model.close()

    @property
    def has_int8(self) -> bool:
        """Whether any linear layer takes int8 activations."""
        return any(note.kind == "quantize" for note in self.notes)

    def describe(self) -> str:
        """What `caldrix plan` prints."""
        return describe(self.notes, self.sizes, self.options, self.vocab_size)


def compile_model(
    graph: Graph,
    source: Source,
    rope: RopeConfig,
    rope_divisors: npt.NDArray[np.float32] | None,
    options: CompileOptions,
    packing: Packing | None = None,
) -> Program:
    """The passes in order. Raises RefusedError for a checkpoint that does not match the graph,
    TooLargeError for no room."""
    check_weights(graph, source)
    limits = Limits(options.max_rows, options.max_out, options.context, options.n_slots)
    frequencies, scale = scaled_frequencies(rope, rope_divisors, source.where)
    lowered = lower(graph)
    if options.activations == "int8":
        tensor_of = source.checkpoint.tensor
        quantize_inputs(lowered, lambda w: tensor_of(source.rename(w.name)).dtype.takes_int8)
    cache_type = by_name(options.dtype)
    cache = plan_cache(
        graph.attention, graph.num_layers, limits.n_slots, limits.context, cache_type.block_bytes
    )
    activations = plan_activations(lowered, limits.max_rows, limits.max_out)
    packed = None
    if packing is not None and (tensors := tensors_to_pack(graph, source, options.dtype)):
        # Before the time is spent; what turns out not to be packable will only add to it.
        files = files_bytes(source.checkpoint, tensors)
        least = Sizes(files, most_bytes(tensors), 0, cache.size_bytes, activations.size_bytes)
        check_fit(least, source.where, limits, memory_limit(files))
        packed = pack(source.checkpoint, tensors, options.threads, packing)
    elif packing is not None:
        packing.status(_nothing_to_pack(graph, source))
    convert_f32 = options.dtype == "bf16"
    weights = WeightPlan(source.checkpoint, source.rename, source.where, convert_f32, packed)
    inv_freq = weights.constant(frequencies)
    emitter = Emitter(
        graph, lowered, activations, cache, weights, limits, cache_type.id, (inv_freq, scale)
    )
    plan = emitter.plan()
    sizes = _sizes(weights, cache, activations)
    check_fit(sizes, source.where, limits, memory_limit(sizes.mapped))
    offset = emitter.value(lowered.logits).offset
    return Program(plan, emitter.notes, sizes, graph, limits, options, weights, offset)


def check_weights(graph: Graph, source: Source) -> None:
    """Every weight of the graph is there in its shape, and every tensor is read or listed as
    ignorable. Cheap, and bounds all else by what the files hold: before anything is built."""
    plan = WeightPlan(source.checkpoint, source.rename, source.where, convert_f32=False)
    known = graph.weights()
    for weight in known:
        plan.find(weight)
    read = {source.rename(weight.name) for weight in known}
    for name in source.checkpoint.tensors:
        if name not in read and not source.ignored.fullmatch(name):
            raise RefusedError(
                f"{source.where}: tensor {name!r} belongs to no part of this model"
                f" ({len(known)} weights are known)"
            )


def tensors_to_pack(graph: Graph, source: Source, dtype: str) -> list[Tensor]:
    """What --weight-codec planes packs of a model under this type, in the order of first use."""
    return packable(_matrices(graph, source), convert_f32=dtype == "bf16")


def _matrices(graph: Graph, source: Source) -> Collection[Tensor]:
    names = (source.rename(weight.name) for weight in graph.weights() if len(weight.shape) == 2)
    return {name: source.checkpoint.tensor(name) for name in names}.values()


def _nothing_to_pack(graph: Graph, source: Source) -> str:
    types = dict.fromkeys(tensor.dtype.name for tensor in _matrices(graph, source))
    return (
        f"{FLAG} packs bf16 matrices with rows of a multiple of 256 values, and this model has none"
        f" ({', '.join(types)}): the weights stay as they are"
    )


def files_bytes(checkpoint: Checkpoint, packed: Iterable[Tensor]) -> int:
    """Bytes of a checkpoint's files that steps read when these tensors are read elsewhere."""
    files = sum(file.size for file in checkpoint.files)
    return files - sum(tensor.size_bytes for tensor in packed)


def _sizes(weights: WeightPlan, cache: CachePlan, activations: ArenaPlan) -> Sizes:
    packed, tensors = weights.packed, weights.checkpoint.tensors
    files = files_bytes(
        weights.checkpoint, [tensors[name] for name in packed.places] if packed else ()
    )
    planes = packed.size_bytes if packed else 0
    return Sizes(files, planes, weights.size_bytes, cache.size_bytes, activations.size_bytes)


def check_fit(sizes: Sizes, where: str, limits: Limits, limit: int | None) -> None:
    """Refuses, before anything is allocated, what this machine cannot hold."""
    if limit is not None and sizes.total > limit:
        many = limits.n_slots > 1
        slots = f" and --parallel {limits.n_slots}" if many else ""
        raise TooLargeError(
            f"{where}: needs {format_size(sizes.total)} ({format_size(sizes.mapped)} of weights,"
            f" {format_size(sizes.cache)} of cache at --ctx {limits.context}{slots});"
            f" this process may use {format_size(limit)};"
            f" use a smaller --ctx{', --parallel' if many else ''} or model"
        )
