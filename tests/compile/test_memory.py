"""How much memory a process may use, on machines laid out as files."""

import mmap
import resource
from pathlib import Path

import pytest
from machine_files import V1, V1_DOCKER, v1, v2, write

from caldrix.compile.memory import SPARE_BYTES, memory_limit

MEMINFO = "MemTotal:        8000000 kB\nMemFree:          100000 kB\n"
MACHINE = 8_000_000 * 1024
NONE_OF_V1 = str(2**63 - 4096)  # what the kernel writes where there is no limit


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """8 GB, and no limit on the address space."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: unlimited)
    write(tmp_path, {"proc/meminfo": MEMINFO})
    return tmp_path


def test_without_a_limit_it_is_the_machines_memory(machine: Path) -> None:
    assert memory_limit(root=machine) == MACHINE


def test_a_machine_that_says_nothing_has_no_limit(machine: Path) -> None:
    write(machine, {"proc/meminfo": "MemTotal: much\n"})
    assert memory_limit(root=machine) is None
    (machine / "proc/meminfo").unlink()
    assert memory_limit(root=machine) is None


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"a/b": "max", "a": "max"}, MACHINE),
        ({"a/b": "2000000"}, 2_000_000),
        ({"a/b": "max", "a": "3000000"}, 3_000_000),
        ({"a/b": "3000000", "a": "2000000"}, 2_000_000),
        ({"a/b": str(MACHINE * 2)}, MACHINE),
        ({"a/b": "", "a": "-1"}, MACHINE),
    ],
)
def test_the_least_limit_of_a_group_and_those_above(
    machine: Path, limits: dict[str, str], expected: int
) -> None:
    v2(machine, "/a/b", "memory.max", limits)
    assert memory_limit(root=machine) == expected


@pytest.mark.parametrize(
    ("mounts", "cgroup", "folder"),
    [
        (V1, "3:memory:/jobs/7\n4:cpu,cpuacct:/\n0::/\n", "sys/fs/cgroup/memory/jobs/7"),
        (V1, "3:memory:/jobs/7\n", "sys/fs/cgroup/memory"),
        (V1_DOCKER, "3:memory:/docker/ab\n", "sys/fs/cgroup/memory"),
    ],
)
def test_a_limit_of_cgroup_v1(machine: Path, mounts: str, cgroup: str, folder: str) -> None:
    v1(machine, mounts, cgroup)
    write(machine, {f"{folder}/memory.limit_in_bytes": "5000000\n"})
    assert memory_limit(root=machine) == 5_000_000
    write(machine, {f"{folder}/memory.limit_in_bytes": f"{NONE_OF_V1}\n"})
    assert memory_limit(root=machine) == MACHINE


def test_a_limit_on_the_address_space_counts(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft = SPARE_BYTES + 4_000_000
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, soft))
    assert memory_limit(root=machine) == 4_000_000
    in_use = 300 * mmap.PAGESIZE
    write(machine, {"proc/self/statm": "300 200 100 1 0 60 0\n"})
    assert memory_limit(root=machine) == 4_000_000 - in_use
    assert memory_limit(in_use, machine) == 4_000_000
    write(machine, {"proc/self/statm": "3000 200 100 1 0 60 0\n"})
    assert memory_limit(5, machine) == 0


def test_this_machine_has_memory() -> None:
    limit = memory_limit()
    assert limit is not None
    assert limit > 10_000_000
