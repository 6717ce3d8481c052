"""How many threads a step should use when nobody says: physical cores, as far as this process may
use them.

Reads the affinity mask, the processor topology and the CPU quota of every cgroup above the process
(v1 and v2); a file that is not there or makes no sense is no limit. Knows nothing of models. `root`
stands for / so that tests can lay out a machine of their own.
"""

import os
from collections.abc import Iterator
from pathlib import Path


def default_threads(root: Path = Path("/"), cpus: set[int] | None = None) -> int:
    """Physical cores in the affinity mask, at most the CPU quota rounded down; at least 1.

    Rounded down because the threads of a step wait for each other: one that the quota holds back
    for the rest of a period holds back all of them.
    """
    if cpus is None:
        cpus = _affinity()
    n_cores = len({_core(root, cpu) for cpu in cpus}) or 1
    quota = min(_quotas(root), default=float(n_cores))
    return max(1, min(n_cores, int(quota)))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _core(root: Path, cpu: int) -> tuple[str, str]:
    """What tells one physical core from another; a CPU without topology is its own core."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    package, core = (_read(topology / name) for name in ("physical_package_id", "core_id"))
    return (package, core) if core else ("cpu", str(cpu))


def _quotas(root: Path) -> Iterator[float]:
    """CPUs allowed by each cgroup from the process's own up to the topmost one that can be seen."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            for group in _groups(root, "cgroup2", path):
                quota, period = [*_read(group / "cpu.max").split(), "", ""][:2]
                yield from _quota(quota, period)
        elif "cpu" in controllers.split(","):
            for group in _groups(root, "cgroup", path):
                quota = _read(group / "cpu.cfs_quota_us")
                yield from _quota(quota, _read(group / "cpu.cfs_period_us"))


def _quota(quota: str, period: str) -> Iterator[float]:
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield int(quota) / int(period)


def _groups(root: Path, kind: str, path: str) -> Iterator[Path]:
    """The folder of cgroup `path` and of each parent, under every place where `kind` is mounted.

    In a container the mount may show a part of the tree only: then its own folder is all there is.
    """
    for mounted, at in _mounts(root, kind):
        prefix = mounted.rstrip("/")
        below = path[len(prefix) :] if f"{path}/".startswith(f"{prefix}/") else path
        parts = [part for part in below.split("/") if part not in ("", "..")]
        for length in range(len(parts), -1, -1):
            yield root.joinpath(at.lstrip("/"), *parts[:length])


def _mounts(root: Path, kind: str) -> list[tuple[str, str]]:
    """(part of the tree, mount point) of each mount of a cgroup kind that controls CPUs."""
    found = []
    for line in _read(root / "proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        fields, about = mount.split(), source.split()
        if len(fields) < 5 or len(about) < 1 or about[0] != kind:
            continue
        if kind == "cgroup" and "cpu" not in about[-1].split(","):
            continue
        found.append((fields[3], fields[4]))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf8", errors="replace").strip()
    except OSError:
        return ""
