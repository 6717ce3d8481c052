"""The Hugging Face cache as it lies on disk, read without the library that fills it.

That library takes longer to import than a small model takes to load, so a model that is here must
be found without it. The layout is public: refs/<revision> holds a commit, snapshots/<commit>/ holds
links into blobs/. In caldrix's own cache a record says which snapshots were fetched and checked.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from caldrix import storage
from caldrix.errors import CaldrixError
from caldrix.hub import repo_files

_COMMIT = re.compile(r"[0-9a-f]{40}")
# A download on its way, as the library has named it since it gave up resuming across processes.
_PARTIAL = re.compile(r"(?P<etag>[0-9A-Za-z-]+)\.[0-9a-f]{8}\.incomplete")
_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit in the cache: `missing` names a file it lacks, a recorded one was checked."""

    commit: str
    directory: Path
    missing: str | None
    is_recorded: bool


def cache_root() -> Path:
    """Where the library keeps repos: by HF_HUB_CACHE, HF_HOME or the XDG cache directory."""
    environment = os.environ
    root = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    if not root:
        shared = environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
        home = environment.get("HF_HOME") or os.path.join(shared, "huggingface")
        root = os.path.join(home, "hub")
    return Path(os.path.abspath(os.path.expandvars(os.path.expanduser(root))))


def is_offline() -> bool:
    """Whether the user forbade the Hugging Face library to use the network."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in _TRUE


def is_commit(revision: str) -> bool:
    """Whether a revision is a full commit id, which never changes its meaning."""
    return _COMMIT.fullmatch(revision) is not None


def snapshot_directory(repo: str, commit: str) -> Path:
    """Where the files of a commit are, or will be."""
    return _repo_directory(repo) / "snapshots" / commit


def find_snapshot(repo: str, revision: str) -> Snapshot | None:
    """What the cache holds of a revision, complete or not; None when nothing."""
    commit = revision if is_commit(revision) else _read_ref(repo, revision)
    if commit is None:
        return None
    directory = snapshot_directory(repo, commit)
    if not directory.is_dir():
        return None
    if _matches_record(repo, commit, directory):
        return Snapshot(commit, directory, None, True)
    return Snapshot(commit, directory, repo_files.find_missing(directory), False)


def write_ref(repo: str, revision: str, commit: str) -> None:
    """Makes `revision` mean `commit` from now on."""
    if not is_commit(revision) and _read_ref(repo, revision) != commit:
        path = _repo_directory(repo) / "refs" / revision
        storage.make_directory(path.parent)
        storage.write_whole(path, commit.encode())


def write_record(repo: str, commit: str, sizes: Mapping[str, int]) -> None:
    """Notes that the files of a snapshot are complete and checked."""
    path = _record_directory(repo) / f"{commit}.json"
    storage.make_directory(path.parent)
    storage.write_whole(path, json.dumps(dict(sizes), indent=1).encode())


def remove_partials(repo: str) -> None:
    """Deletes what killed downloads left behind: the library never takes them up again.

    It holds a lock on a blob that it is working on, so another program's download stays.
    """
    locks = cache_root() / ".locks" / _folder(repo)
    for path in (_repo_directory(repo) / "blobs").glob("*.incomplete"):
        match = _PARTIAL.fullmatch(path.name)
        if match and not storage.is_locked(locks / f"{match['etag']}.lock"):
            with storage.disk_errors(path):
                path.unlink(missing_ok=True)


def discard(repo: str, path: Path) -> None:
    """Removes a bad file of a snapshot, and the blob behind it if that lies in the repo's cache."""
    with storage.disk_errors(path):
        if path.is_symlink():
            blob = Path(os.path.normpath(path.parent / path.readlink()))
            if blob.parent == _repo_directory(repo) / "blobs":
                blob.unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def lock_path(repo: str) -> Path:
    """The file that a caldrix holds while it downloads a repo."""
    return _record_directory(repo) / ".lock"


def _repo_directory(repo: str) -> Path:
    return cache_root() / _folder(repo)


def _record_directory(repo: str) -> Path:
    return storage.cache_directory() / "hub" / _folder(repo)


def _folder(repo: str) -> str:
    return f"models--{repo.replace('/', '--')}"


def _read_ref(repo: str, revision: str) -> str | None:
    try:
        commit = (_repo_directory(repo) / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if is_commit(commit) else None


def _matches_record(repo: str, commit: str, directory: Path) -> bool:
    try:
        sizes = json.loads((_record_directory(repo) / f"{commit}.json").read_bytes())
        return bool(sizes) and all(
            (directory / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, TypeError, AttributeError, CaldrixError):
        return False
