"""Rotary positions: the inverse frequencies of a model and the scalings of long-context
checkpoints.

Pure arithmetic on numpy arrays, in f32 where the reference library (transformers,
modeling_rope_utils) is: angles at far positions magnify a last-bit difference here. Knows nothing
of configs' spellings.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from caldrix.errors import RefusedError

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """`kind` is default, linear, llama3 or yarn; `dim` the rotated numbers of a head."""

    kind: str
    theta: float
    dim: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


def scaled_frequencies(rope: RopeConfig, divisors: Array | None, where: str) -> tuple[Array, float]:
    """inverse_frequencies, divided by what the checkpoint holds for it; refuses factors so extreme
    that no frequency is left."""
    with np.errstate(all="ignore"):
        frequencies, scale = inverse_frequencies(rope)
        if divisors is not None:
            frequencies = (frequencies / divisors).astype(np.float32)
    if not np.isfinite(frequencies).all():
        raise RefusedError(
            f"{where}: rope scaling by {rope.factor:g} at base {rope.theta:g} leaves a frequency"
            f" that is not finite"
        )
    return frequencies, scale


def inverse_frequencies(rope: RopeConfig) -> tuple[Array, float]:
    """(f32[dim / 2], the factor cosine and sine are multiplied by)."""
    exponent = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    base = (np.float32(1.0) / np.power(np.float32(rope.theta), exponent)).astype(np.float32)
    if rope.kind == "linear":
        return (base / np.float32(rope.factor)).astype(np.float32), 1.0
    if rope.kind == "llama3":
        return llama3(base, rope), 1.0
    if rope.kind == "yarn":
        return yarn(base, rope)
    return base, 1.0


def llama3(base: Array, rope: RopeConfig) -> Array:
    """Keeps short waves, slows long ones by `factor`, and blends between (Llama 3.1 model card)."""
    low, high = rope.low_freq_factor, rope.high_freq_factor
    original = rope.original_max_position_embeddings
    wavelength = 2 * math.pi / base
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * base / rope.factor + smooth * base
    scaled = np.where(wavelength > original / low, base / rope.factor, base)
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return np.where(between, blended, scaled).astype(np.float32)


def yarn(base: Array, rope: RopeConfig) -> tuple[Array, float]:
    """YaRN (arXiv 2309.00071): interpolate low frequencies, keep high ones, ramp between."""
    low, high = correction_range(rope)
    ramp = (np.arange(rope.dim // 2, dtype=np.float32) - low) / (high - low)
    keep = 1 - np.clip(ramp, 0, 1)
    scaled = base / np.float32(rope.factor) * (1 - keep) + base * keep
    return scaled.astype(np.float32), yarn_attention_factor(rope)


def correction_range(rope: RopeConfig) -> tuple[float, float]:
    """The dimensions that make beta_fast and beta_slow turns over the original context."""

    def dimension(turns: float) -> float:
        original = rope.original_max_position_embeddings
        return rope.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    return (low, high + 0.001) if low == high else (low, high)


def yarn_attention_factor(rope: RopeConfig) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)
