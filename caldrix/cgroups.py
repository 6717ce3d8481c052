"""The cgroups that this process is in: the folders that hold its limits on processors and memory.

Reads /proc and the mounts of both cgroup versions; what is not there or makes no sense is no group.
Knows no limit by name: who asks reads the files. `root` stands for / so that tests can lay out a
machine of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Group:
    """One cgroup: its files are named by the version, 1 or 2."""

    version: int
    folder: Path

    def read(self, name: str) -> str:
        """The text of one of its files; empty when it cannot be read."""
        return read(self.folder / name)


def groups(root: Path, controller: str) -> Iterator[Group]:
    """The process's own group and each one above it that can be seen, wherever `controller` (cpu,
    memory) may be limited.

    In a container the mount may show a part of the tree only: then its own folder is all there is.
    """
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        version = 1 if controllers else 2
        for mounted, at in _mounts(root, version, controller):
            for part in _upwards(path, mounted):
                yield Group(version, root.joinpath(at.lstrip("/"), *part))


def _upwards(path: str, mounted: str) -> Iterator[list[str]]:
    """The folders from `path` up to where the tree is mounted, each as its parts below that."""
    prefix = mounted.rstrip("/")
    below = path[len(prefix) :] if f"{path}/".startswith(f"{prefix}/") else path
    parts = [part for part in below.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield parts[:length]


def _mounts(root: Path, version: int, controller: str) -> list[tuple[str, str]]:
    """(part of the tree, mount point) of each mount of a cgroup version that has `controller`."""
    kind = "cgroup2" if version == 2 else "cgroup"
    found = []
    for line in read(root / "proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        fields, about = mount.split(), source.split()
        if len(fields) < 5 or len(about) < 1 or about[0] != kind:
            continue
        if version == 2 or controller in about[-1].split(","):
            found.append((fields[3], fields[4]))
    return found


def read(path: Path) -> str:
    """The text of a small file, without blanks around it; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf8", errors="replace").strip()
    except OSError:
        return ""
