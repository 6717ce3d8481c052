"""The default thread count on machines laid out as files: cores, quotas of both cgroups."""

from pathlib import Path

import pytest
from machine_files import V1, V1_DOCKER, v1, v2, write

from caldrix.engine.threads import default_threads


def cores(root: Path, layout: list[tuple[int, int]]) -> set[int]:
    """CPUs 0, 1, ... with these (package, core)."""
    for cpu, (package, core) in enumerate(layout):
        at = f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(root, {f"{at}/physical_package_id": f"{package}\n", f"{at}/core_id": f"{core}\n"})
    return set(range(len(layout)))


def test_siblings_of_a_core_count_once(tmp_path: Path) -> None:
    cpus = cores(tmp_path, [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 0)])
    assert default_threads(tmp_path, cpus) == 3
    assert default_threads(tmp_path, {0, 2}) == 1  # the affinity mask
    assert default_threads(tmp_path, {0, 1, 4}) == 3


def test_a_machine_that_says_nothing_gets_a_thread_for_each_cpu(tmp_path: Path) -> None:
    assert default_threads(tmp_path, {0, 1, 2}) == 3
    assert default_threads(tmp_path, set()) == 1


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 4),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("150000 100000", 1),
        ("200000 100000", 2),
        ("800000 100000", 4),
        ("", 4),
        ("200000", 4),
        ("x 100000", 4),
        ("100000 0", 4),
        ("-1 100000", 4),
    ],
)
def test_the_quota_of_cgroup_v2_is_rounded_down(tmp_path: Path, quota: str, expected: int) -> None:
    v2(tmp_path, "/user.slice/run.scope", "cpu.max", {"user.slice/run.scope": quota})
    assert default_threads(tmp_path, {0, 1, 2, 3}) == expected


def test_a_quota_on_a_parent_group_counts(tmp_path: Path) -> None:
    quotas = {"a/b/c": "max 100000", "a/b": "300000 100000", "a": "200000 100000"}
    v2(tmp_path, "/a/b/c", "cpu.max", quotas)
    assert default_threads(tmp_path, {0, 1, 2, 3}) == 2


def test_inside_a_container_the_mount_is_the_whole_tree(tmp_path: Path) -> None:
    v2(tmp_path, "/", "cpu.max", {".": "200000 100000"})
    assert default_threads(tmp_path, {0, 1, 2, 3}) == 2
    write(tmp_path, {"proc/self/cgroup": "0::/../../outside\n"})
    assert default_threads(tmp_path, {0, 1, 2, 3}) == 2


@pytest.mark.parametrize(
    ("mounts", "cgroup", "folder"),
    [
        (V1, "4:cpu,cpuacct:/jobs/7\n0::/\n", "sys/fs/cgroup/cpu,cpuacct/jobs/7"),
        (V1, "4:cpu,cpuacct:/jobs/7\n", "sys/fs/cgroup/cpu,cpuacct/jobs"),
        (V1_DOCKER, "4:cpu:/docker/ab\n", "sys/fs/cgroup/cpu"),
        (V1_DOCKER, "4:cpu:/docker/ab/x\n", "sys/fs/cgroup/cpu/x"),
    ],
)
def test_the_quota_of_cgroup_v1(tmp_path: Path, mounts: str, cgroup: str, folder: str) -> None:
    v1(tmp_path, mounts, cgroup)
    quota = {f"{folder}/cpu.cfs_quota_us": "200000\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    write(tmp_path, quota)
    assert default_threads(tmp_path, {0, 1, 2, 3}) == 2
    write(tmp_path, {f"{folder}/cpu.cfs_quota_us": "-1\n"})
    assert default_threads(tmp_path, {0, 1, 2, 3}) == 4


def test_an_unreadable_file_is_no_limit(tmp_path: Path) -> None:
    v2(tmp_path, "/a", "cpu.max", {})
    (tmp_path / "sys/fs/cgroup/a/cpu.max").mkdir(
        parents=True
    )  # reading a folder fails for root too
    assert default_threads(tmp_path, {0, 1}) == 2


def test_this_machine_gets_at_least_one_thread() -> None:
    assert default_threads() >= 1
