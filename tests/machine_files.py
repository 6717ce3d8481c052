"""A machine laid out as files below a folder: the cgroup mounts of /proc, and whatever a test adds.

For what caldrix reads of the machine when `root` is not /.
"""

from pathlib import Path

V2 = "30 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "33 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "34 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
V1_DOCKER = (
    "33 25 0:28 /docker/ab /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"
    "34 25 0:29 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def v2(root: Path, path: str, file: str, limits: dict[str, str]) -> None:
    """The process is in group `path` of version 2; `limits` are the texts of `file`, by group."""
    write(root, {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": V2})
    write(root, {f"sys/fs/cgroup/{at}/{file}": text for at, text in limits.items()})


def v1(root: Path, mounts: str, cgroup: str) -> None:
    write(root, {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts})
