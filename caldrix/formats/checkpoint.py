"""Mapped weight files and the tensors in them: what both readers hand to the layers above.

Owns the mapping of a file and the refusals that are the same for every format. Must not know a
format's layout. A mapping is read-only and covers the whole file; it lives as long as its view.
A Tensor exists only after its bytes were checked to lie inside its file.
"""

import errno
import mmap
import os
import resource
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from caldrix import native
from caldrix.errors import EngineError, NotFoundError, RefusedError, TooLargeError, printable
from caldrix.formats.dtypes import DType
from caldrix.log import escape
from caldrix.units import format_size

if TYPE_CHECKING:
    import numpy as np


def refusal(path: Path, problem: str) -> RefusedError:
    """The error that refuses this file, on one line whatever its name holds."""
    return RefusedError(f"{escape(str(path))}: {problem}")


@dataclass(frozen=True, slots=True, eq=False)
class MappedFile:
    """A whole file, read-only; mapped as long as `view`, or a slice of it, lives. `mapping` is what
    to keep and hand on; `view` is for reading it in Python. The times are of its last change when
    it was mapped, in ns: of its bytes, and of anything about it."""

    path: Path
    size: int
    modified_ns: int
    changed_ns: int
    mapping: mmap.mmap
    view: memoryview

    def refusal(self, problem: str) -> RefusedError:
        return refusal(self.path, problem)

    def let_go(self, start: int, stop: int) -> None:
        """Bytes [start, stop) need not stay in memory: they are read again when asked for."""
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        self.mapping.madvise(mmap.MADV_DONTNEED, page, stop - page)

    def cut_short(self, needed: int, first: str) -> RefusedError:
        """Refuses a file that ends before its tensors do, `first` of them in order."""
        problem = f"cut short: it has {self.size} bytes, its tensors need {needed}"
        return self.refusal(f"{problem}; {printable(first)} is the first past the end")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, not empty, for reading; an error of the file system inside refuses it too."""
    try:
        # Before the open, which would wait on a FIFO.
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            raise refusal(path, "not a regular file")
        if about.st_size == 0:
            raise refusal(path, "the file is empty")
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise NotFoundError(f"{escape(str(path))}: no such file") from None
    except (OSError, ValueError) as error:
        raise refusal(path, f"cannot be read: {escape(str(error))}") from None


def map_file(path: Path) -> MappedFile:
    """The whole of a regular file, read-only; refuses an empty one, a directory and a device."""
    with opened(path) as file:
        about = os.fstat(file.fileno())
        size = about.st_size
        try:
            mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise _no_room(path, size) from None
    times = about.st_mtime_ns, about.st_ctime_ns
    return MappedFile(path, size, *times, mapping, memoryview(mapping))


def check_still_whole(path: Path, mapping: mmap.mmap, size: int) -> None:
    """Raises EngineError where a file of `size` bytes was cut after it was mapped: what is gone
    reads as zeros or, a page further, ends the process. To be asked before and after a read; it
    costs half a microsecond."""
    if (left := mapping.size()) < size:
        raise EngineError(
            f"{escape(str(path))}: cut from {size} to {left} bytes while in use;"
            f" start again with a whole file"
        )


def _no_room(path: Path, size: int) -> TooLargeError:
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    limit = "without a limit" if soft == resource.RLIM_INFINITY else f"of {format_size(soft)}"
    return TooLargeError(
        f"{escape(str(path))}: its {format_size(size)} do not fit what is left of the address space"
        f" {limit} (ulimit -v)"
    )


# How files start that are often found where a model was expected.
_FOREIGN = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer, not the file itself; fetch it with git lfs pull",
    ),
    (b"<!doctype html", "an HTML page, not a model file; download it again"),
    (b"<html", "an HTML page, not a model file; download it again"),
    (b"gguf", "a GGUF file; give its path as the model"),
    (b"pk\x03\x04", "a zip archive (PyTorch writes these), not a model file caldrix reads"),
)


def foreign_kind(view: memoryview) -> str | None:
    """What a file without the expected start is instead, where its first bytes tell."""
    head = bytes(view[:64]).lstrip().lower()
    for start, kind in _FOREIGN:
        if head.startswith(start):
            return kind
    if len(head) > 8 and head[8:9] == b"{" and head[4:8] == b"\0\0\0\0":
        return "a safetensors file; give its directory as the model"
    return None


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor where it lies in its file.

    The shape is row-major, outermost first; the offset counts from the file's start.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    file: MappedFile
    offset: int

    @property
    def n_elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.n_elements // self.dtype.block_elements * self.dtype.block_bytes

    @property
    def data(self) -> memoryview:
        """The bytes in the file, not copied."""
        return self.file.view[self.offset : self.offset + self.size_bytes]

    def to_f32(self) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        """A new f32 array of this shape."""
        return native.decode(self.dtype.id, self.data, self.n_elements).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Where a tensor was found whose dtype, named as in its file, has no place in DType."""

    dtype: str
    file: MappedFile

    def refusal(self, name: str) -> RefusedError:
        problem = f"tensor {printable(name)} has dtype {self.dtype}, which no weight may have"
        return self.file.refusal(f"{problem}; F32, F16 and BF16 are accepted")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Every tensor of a model.

    `unreadable` holds the ones of a dtype caldrix does not compute with: a file may carry such
    tensors as long as no weight needs them.
    """

    tensors: dict[str, Tensor]
    files: tuple[MappedFile, ...]
    unreadable: dict[str, Unreadable] = field(default_factory=dict)

    def tensor(self, name: str) -> Tensor:
        """The tensor of this name; refuses one that is missing or of an unreadable dtype."""
        found = self.tensors.get(name)
        if found is not None:
            return found
        if name in self.unreadable:
            raise self.unreadable[name].refusal(name)
        path = self.files[0].path
        where = path if len(self.files) == 1 else path.parent
        raise refusal(where, f"no tensor {printable(name)} among its {len(self.tensors)}")


def merge(parts: Iterable[Checkpoint]) -> Checkpoint:
    """One checkpoint of several files; refuses a tensor that two of them hold."""
    tensors: dict[str, Tensor] = {}
    unreadable: dict[str, Unreadable] = {}
    files: list[MappedFile] = []
    for part in parts:
        for name in (*part.tensors, *part.unreadable):
            if name in tensors or name in unreadable:
                raise part.files[0].refusal(
                    f"tensor {printable(name)} is in another file of the set too"
                )
        tensors |= part.tensors
        unreadable |= part.unreadable
        files += part.files
    return Checkpoint(tensors, tuple(files), unreadable)
