"""Weights to memory: which tensors are read in place from the mapped files and which are made
anew, and where.

A matrix stays in its file, whatever its type, because the kernels decode every type on the fly;
only an f32 matrix under the bf16 type is converted, and one that was packed is read where its
planes are. Vectors (norms, biases) and constants become f32 in the weights arena. Planning comes
first, filling second, so that the arena is allocated once and a model that does not fit is refused
before anything is read.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from caldrix import native
from caldrix.compile.bf16 import bf16_piece
from caldrix.compile.memory import align
from caldrix.compile.packing import Packed
from caldrix.errors import RefusedError
from caldrix.formats.checkpoint import Checkpoint, Tensor
from caldrix.formats.dtypes import by_name
from caldrix.models.graph import Weight

# Elements converted at a time: bounds what a conversion holds beside its result.
CONVERT_PIECE = 1 << 20


class Ref(NamedTuple):
    """struct cx_ref of native/include/ops.h."""

    arena: int
    type: int
    offset: int


NO_REF = Ref(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Made:
    """Something to write into the weights arena: `source` as `dtype` at `offset`."""

    offset: int
    size_bytes: int
    source: Tensor | npt.NDArray[np.float32]
    dtype: str


@dataclass(slots=True)
class WeightPlan:
    """Binds weights by name; `made` is what fill() will write."""

    checkpoint: Checkpoint
    rename: Callable[[str], str]
    where: str
    convert_f32: bool
    packed: Packed | None = None
    made: list[Made] = field(default_factory=list)
    size_bytes: int = 0
    _bound: dict[str, Ref] = field(default_factory=dict)

    def find(self, weight: Weight) -> Tensor:
        """The checkpoint's tensor for `weight`, its shape checked."""
        name = self.rename(weight.name)
        tensor = self.checkpoint.tensor(name)
        if tensor.shape != weight.shape:
            raise RefusedError(
                f"{self.where}: tensor {name!r} has shape {list(tensor.shape)};"
                f" the model needs {list(weight.shape)}"
            )
        return tensor

    @property
    def n_arenas(self) -> int:
        """The mapped files come last, and after them what was packed."""
        n_files = len(self.checkpoint.files) + (self.packed is not None)
        return native.ENUMS["CX_ARENA_FILES"] + n_files

    def matrix(self, weight: Weight) -> Ref:
        """Packed, converted, or where it lies."""
        if weight.name not in self._bound:
            tensor = self.find(weight)
            if self.packed is not None and tensor.name in self.packed.places:
                place = self.packed.places[tensor.name]
                self._bound[weight.name] = Ref(self.n_arenas - 1, place.dtype.id, place.offset)
            elif self.convert_f32 and tensor.dtype.name == "f32":
                self._bound[weight.name] = self._make(tensor, "bf16", 2 * tensor.n_elements)
            else:
                arena = native.ENUMS["CX_ARENA_FILES"] + self.checkpoint.files.index(tensor.file)
                self._bound[weight.name] = Ref(arena, tensor.dtype.id, tensor.offset)
        return self._bound[weight.name]

    def vector(self, weight: Weight | None) -> Ref:
        """f32 in the weights arena; an absent one is the empty reference."""
        if weight is None:
            return NO_REF
        if weight.name not in self._bound:
            tensor = self.find(weight)
            self._bound[weight.name] = self._make(tensor, "f32", 4 * tensor.n_elements)
        return self._bound[weight.name]

    def constant(self, values: npt.NDArray[np.float32]) -> Ref:
        """Numbers of our own, put among the weights."""
        return self._make(values, "f32", values.nbytes)

    def _make(self, source: Tensor | npt.NDArray[np.float32], dtype: str, n_bytes: int) -> Ref:
        offset = self.size_bytes
        self.made.append(Made(offset, n_bytes, source, dtype))
        self.size_bytes = align(offset + n_bytes)
        return Ref(native.ENUMS["CX_ARENA_WEIGHTS"], by_name(dtype).id, offset)

    def fill(self, arena: memoryview) -> None:
        """Writes everything made into the arena, a piece at a time."""
        for item in self.made:
            target = arena[item.offset : item.offset + item.size_bytes]
            if not isinstance(item.source, Tensor):
                target[:] = item.source.tobytes()
            elif item.dtype == "f32":
                target[:] = item.source.to_f32().tobytes()
            else:
                _convert_to_bf16(item.source, np.frombuffer(target, np.uint16))


def _convert_to_bf16(tensor: Tensor, target: npt.NDArray[np.uint16]) -> None:
    for start in range(0, tensor.n_elements, CONVERT_PIECE):
        stop = min(start + CONVERT_PIECE, tensor.n_elements)
        target[start:stop] = bf16_piece(tensor, start, stop)
