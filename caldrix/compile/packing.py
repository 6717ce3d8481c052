"""bf16 matrices as planes: packed at load, and kept in a layout file that the next start maps.

Owns which matrices are packed, the order of it and what is said of it. The same values come out of
planes as went in (native/quant/planes.h), so nothing here changes a reply. Where no file can be
kept, the planes are made in memory. A piece of the model's own file is let go as soon as it is
packed, so that two copies of the weights never lie in memory together.
"""

import hashlib
import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from caldrix import native, storage
from caldrix.compile.bf16 import bf16_piece
from caldrix.errors import RefusedError, TooLargeError, printable
from caldrix.formats import layout
from caldrix.formats.checkpoint import Checkpoint, Tensor
from caldrix.formats.dtypes import by_name
from caldrix.formats.layout import Place, Unusable
from caldrix.progress import Progress
from caldrix.units import format_seconds, format_size

FLAG = "--weight-codec planes"
PIECE = 1 << 19  # values that a thread packs at a time: 1 MiB of bf16

Status = Callable[[str], None]
Write = Callable[[int, bytearray], None]  # puts bytes at an offset; called by several threads


@dataclass(frozen=True, slots=True)
class Packing:
    """That weights are to be packed: where layout files are kept (None: nowhere), whom to tell."""

    directory: Path | None
    status: Status


class Packed(NamedTuple):
    """Planes in memory, or in a mapped layout file, whose path is given then."""

    arena: mmap.mmap
    size_bytes: int
    places: dict[str, Place]  # by the name of the tensor; its offset is in the arena
    path: Path | None


def packable(tensors: Iterable[Tensor], convert_f32: bool) -> list[Tensor]:
    """Of a model's matrices, those that may become planes: of bf16, or of f32 that is converted to
    it, with rows of whole blocks. Their exponents are looked at when they are packed."""
    types = ("bf16", "f32") if convert_f32 else ("bf16",)
    step = by_name("planes").block_elements
    return [t for t in tensors if t.dtype.name in types and t.shape[-1] % step == 0]


def most_bytes(tensors: Iterable[Tensor]) -> int:
    """What these take as planes if all can be packed."""
    return layout.HEAD_BYTES + sum(layout.align(_place(tensor, 0).end) for tensor in tensors)


def pack(
    checkpoint: Checkpoint, tensors: Sequence[Tensor], threads: int, packing: Packing
) -> Packed:
    """`tensors` of `checkpoint` as planes: mapped from their layout file, which is made if need be,
    or made in memory where it cannot be. Those with too many odd exponents are left out."""
    if packing.directory is not None:
        path = packing.directory / _file_name(checkpoint, tensors)
        try:
            return _kept(path, checkpoint, tensors, threads, packing.status)
        except (RefusedError, TooLargeError) as error:
            packing.status(f"{FLAG}: kept in memory only: {error}")
    arena = native.allocate(most_bytes(tensors))

    def write(offset: int, data: bytearray) -> None:
        arena[offset : offset + len(data)] = data

    started = time.monotonic()
    places = _pack_all(tensors, threads, write)
    _report(tensors, places, started, packing.status)
    end = max((place.end for place in places), default=layout.HEAD_BYTES)
    return Packed(arena, end, {place.name: place for place in places}, None)


def _place(tensor: Tensor, offset: int) -> Place:
    return Place(tensor.name, by_name("planes"), tensor.shape, offset)


# --- the layout file ----------------------------------------------------------------------------


def _file_name(checkpoint: Checkpoint, tensors: Sequence[Tensor]) -> str:
    """One for each model and choice of tensors; when the weights change it is written over."""
    first = checkpoint.files[0].path
    stem = first.stem if first.suffix == ".gguf" else first.absolute().parent.name
    key = [os.path.realpath(file.path) for file in checkpoint.files]
    key += [f"{tensor.name} {tensor.dtype.name}" for tensor in tensors]
    digest = hashlib.sha256("\0".join(key).encode("utf8", "surrogateescape")).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '_', stem)[:64]}-{digest[:16]}.layout"


def _kept(
    path: Path, checkpoint: Checkpoint, tensors: Sequence[Tensor], threads: int, status: Status
) -> Packed:
    """From the layout file, which is made where there is none of use."""
    try:
        return _mapped(path, checkpoint, tensors, status)
    except Unusable as why:
        if os.path.lexists(path):
            status(f"{path}: {why}; packing the weights again")
    directory, wait = storage.make_directory(path.parent), "waiting for another caldrix to pack"
    with storage.locked(directory / "lock", lambda: status(wait)):
        with suppress(Unusable):  # the other one may have made it
            return _mapped(path, checkpoint, tensors, status)
        storage.remove_partial(directory)
        storage.require_space(directory, most_bytes(tensors), path.name)
        started = time.monotonic()
        with storage.replacing(path) as file:
            places = _pack_all(tensors, threads, _writer(file.fileno()))
            layout.write_table(file, checkpoint.files, places)
        _report(tensors, places, started, status)
    try:
        return _mapped(path, checkpoint, tensors, status)
    except Unusable as why:
        raise RefusedError(f"{path}: {why}") from None


def _mapped(
    path: Path, checkpoint: Checkpoint, tensors: Sequence[Tensor], status: Status
) -> Packed:
    """The layout file as it is. Raises Unusable."""
    opened = layout.open_layout(path, checkpoint.files)
    wanted = {tensor.name: _place(tensor, 0) for tensor in tensors}
    for place in opened.places:
        if wanted.get(place.name) != place._replace(offset=0):
            raise Unusable(f"it holds {printable(place.name)} in another form")
    status(f"weights mapped from {path} ({format_size(opened.file.size)})")
    places = {place.name: place for place in opened.places}
    return Packed(opened.file.mapping, opened.file.size, places, path)


def _writer(descriptor: int) -> Write:
    def write(offset: int, data: bytearray) -> None:
        rest = memoryview(data)
        while rest:
            n_bytes = os.pwrite(descriptor, rest, offset)
            rest, offset = rest[n_bytes:], offset + n_bytes

    return write


# --- packing ------------------------------------------------------------------------------------


def _pack_all(tensors: Sequence[Tensor], threads: int, write: Write) -> list[Place]:
    """Packs one tensor after another; the places of those that fit."""
    progress = Progress("packing the weights", sum(tensor.size_bytes for tensor in tensors))
    places: list[Place] = []
    end, done = layout.HEAD_BYTES, 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for tensor in tensors:
                place, fits = _place(tensor, layout.align(end)), True
                for n_bytes in _pack(tensor, place.offset, pool, write):
                    fits = fits and n_bytes > 0
                    progress.update(done := done + n_bytes)
                tensor.file.let_go(tensor.offset, tensor.offset + tensor.size_bytes)
                if fits:
                    places.append(place)
                    end = place.end
        finally:
            progress.erase()
    return places


def _pack(tensor: Tensor, at: int, pool: ThreadPoolExecutor, write: Write) -> Iterator[int]:
    """Packs a tensor to offset `at`, piece by piece on all threads. Yields the bytes that each
    piece has taken of its file; 0 for one that cannot be packed, and for those not tried then."""
    planes, size, is_odd = by_name("planes"), tensor.dtype.block_bytes, threading.Event()

    def pack_piece(start: int) -> int:
        stop = min(start + PIECE, tensor.n_elements)
        target = bytearray((stop - start) // planes.block_elements * planes.block_bytes)
        if is_odd.is_set() or not native.pack_planes(bf16_piece(tensor, start, stop), target):
            is_odd.set()
            return 0
        write(at + start // planes.block_elements * planes.block_bytes, target)
        tensor.file.let_go(tensor.offset + size * start, tensor.offset + size * stop)
        return size * (stop - start)

    return pool.map(pack_piece, range(0, tensor.n_elements, PIECE))


def _report(
    tensors: Sequence[Tensor], places: Sequence[Place], started: float, status: Status
) -> None:
    fit = {place.name for place in places}
    before = sum(tensor.size_bytes for tensor in tensors if tensor.name in fit)
    after = sum(place.end - place.offset for place in places)
    odd = len(tensors) - len(places)
    status(
        f"packed {format_size(before)} of weights as {format_size(after)} of planes"
        f" in {format_seconds(time.monotonic() - started)}"
        + (f"; {odd} of {len(tensors)} matrices stay as they are: odd exponents" if odd else "")
    )
