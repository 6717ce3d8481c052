"""f32 to bf16, and a tensor of either a piece at a time."""

import numpy as np
import numpy.typing as npt

from caldrix.formats.checkpoint import Tensor


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even; a NaN stays a NaN."""
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        rounded[nan] = (bits[nan] >> 16).astype(np.uint16) | 0x40
    return rounded


def bf16_piece(tensor: Tensor, start: int, stop: int) -> npt.NDArray[np.uint16]:
    """Elements [start, stop) of an f32 or bf16 tensor as bf16; of bf16, where they lie."""
    size = tensor.dtype.block_bytes
    raw = tensor.data[size * start : size * stop]
    if tensor.dtype.name == "bf16":
        return np.frombuffer(raw, np.uint16)
    return to_bf16(np.frombuffer(raw, np.float32))
