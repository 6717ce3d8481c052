"""What every op computes, in numpy float64: the judge of the kernels and of whole models.

To be read beside native/include/ops.h: one function per op, with its shapes, and no cleverness.
Knows nothing of plans, arenas, instruction-set rows or threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MASK64 = (1 << 64) - 1
GOLDEN64 = 0x9E3779B97F4A7C15


# --- sampling -----------------------------------------------------------------------------------


def mix64(x: int) -> int:
    """The finaliser of splitmix64."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK64
    return x ^ x >> 31


def uniform(seed: int, draw: int) -> float:
    """The draw-th number in [0, 1) of a seed."""
    return (
        mix64((mix64((seed + GOLDEN64) & MASK64) + (draw + 1) * GOLDEN64) & MASK64) >> 11
    ) / 2**53


def penalised(logits: NDArray[np.float32], penalty: float, recent: Sequence[int]) -> Array:
    """The repetition penalty, in f32 as the product's own scores are."""
    scores = logits.astype(np.float32).copy()
    limit = np.finfo(np.float32).max
    with np.errstate(over="ignore"):
        for token in set(recent):
            score = scores[token]
            scores[token] = (
                score / np.float32(penalty) if score > 0 else score * np.float32(penalty)
            )
    return np.clip(scores, -limit, limit).astype(np.float64)


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total: Array = weights.sum(axis=-1, keepdims=True)
    return weights / total


def candidates(
    logits: NDArray[np.float32],
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    recent: Sequence[int] = (),
) -> tuple[NDArray[np.intp], Array]:
    """The token ids that may be drawn, ascending, and their probabilities."""
    scores = penalised(logits, repetition_penalty, recent)
    order = np.lexsort((np.arange(len(scores)), -scores))
    if temperature == 0:
        return order[:1], np.ones(1)
    if 0 < top_k < len(order):
        order = order[:top_k]
    probabilities = softmax(scores[order])
    if top_p < 1:
        n_below = int(np.searchsorted(np.cumsum(probabilities), top_p))
        order = order[: n_below + 1]
        probabilities = probabilities[: n_below + 1]
    order = np.sort(order[probabilities >= min_p * probabilities[0]])
    return order, softmax(scores[order] / np.float64(temperature))


def sample(logits: NDArray[np.float32], *, seed: int, draw: int, **settings: object) -> int:
    """One token, by cx_sample's rules; settings are those of candidates()."""
    ids, probabilities = candidates(logits, **settings)  # type: ignore[arg-type]
    fraction = uniform(seed, draw)
    at = int(np.searchsorted(np.cumsum(probabilities), fraction, side="right"))
    return int(ids[min(at, len(ids) - 1)])
