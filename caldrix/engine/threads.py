"""How many threads a step should use when nobody says: physical cores, as far as this process may
use them.

Reads the affinity mask, the processor topology and the CPU quota of every cgroup above the process;
a file that is not there or makes no sense is no limit. Knows nothing of models. `root` stands for /
so that tests can lay out a machine of their own.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from caldrix import cgroups


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
    package, core = (cgroups.read(topology / n) for n in ("physical_package_id", "core_id"))
    return (package, core) if core else ("cpu", str(cpu))


def _quotas(root: Path) -> Iterator[float]:
    """CPUs allowed by each cgroup from the process's own up to the topmost one that can be seen."""
    for group in cgroups.groups(root, "cpu"):
        if group.version == 2:
            quota, period = [*group.read("cpu.max").split(), "", ""][:2]
        else:
            quota, period = group.read("cpu.cfs_quota_us"), group.read("cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            yield int(quota) / int(period)
