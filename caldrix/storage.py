"""The caldrix cache on disk: its directory, locks, free space, files that appear whole or not.

Knows nothing of hubs, packages or models. An error of the file system becomes one line, with both
numbers in it when space is what is missing.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from caldrix.errors import CaldrixError, RefusedError, TooLargeError
from caldrix.units import format_size

PARTIAL = ".partial"


def cache_directory() -> Path:
    """$CALDRIX_CACHE_DIR, else $XDG_CACHE_HOME/caldrix, else ~/.cache/caldrix, made or not."""
    own = os.environ.get("CALDRIX_CACHE_DIR")
    if own:
        return Path(os.path.abspath(os.path.expanduser(own)))
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared and os.path.isabs(shared):  # the XDG specification: a relative one is ignored
        return Path(shared) / "caldrix"
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise RefusedError("there is no home directory for the cache: set CALDRIX_CACHE_DIR")
    return Path(home) / ".cache" / "caldrix"


def make_directory(path: Path) -> Path:
    """`path`, made with its parents where missing."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns an OSError inside into one line about `path`."""
    try:
        yield
    except OSError as error:
        raise disk_refusal(error, path) from error


def disk_refusal(error: OSError, path: Path) -> CaldrixError:
    """The line for a failed write under `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TooLargeError(f"the disk is full: {path} has {format_size(free_space(path))} left")
    return RefusedError(f"cannot use {path}: {error.strerror or type(error).__name__}")


def free_space(path: Path) -> int:
    """Bytes free on the file system that `path` is, or will be, on."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def require_space(directory: Path, n_bytes: int, what: str) -> None:
    """Raises TooLargeError unless `n_bytes` fit on the file system of `directory`."""
    with disk_errors(directory):
        free = free_space(directory)
    if free < n_bytes:
        raise TooLargeError(
            f"{what} needs {format_size(n_bytes)} of disk and {directory} has"
            f" {format_size(free)} left"
        )


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock file `path`; calls `on_wait` once when another process holds it.

    The kernel frees the lock when its holder ends, killed or not, and so wakes the one that waits.
    """
    with disk_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with disk_errors(path):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file `path`; where that cannot be told, it may."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_whole(path: Path, data: bytes) -> None:
    """Writes `path` so that a reader, also after a crash, sees all of it or the old one."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends, and not if it raises; a
    reader, also after a crash, sees all of it or the old one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    with disk_errors(path):
        try:
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            sync_directory(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def remove_partial(directory: Path) -> None:
    """Clears away what killed processes left behind in `replacing` a file of `directory`; nobody
    else may be writing there."""
    with disk_errors(directory):
        for path in directory.glob(f".*{PARTIAL}"):
            path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Makes a rename inside `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
