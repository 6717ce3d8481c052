"""What every op computes, in numpy float64: the judge of the kernels and of whole models.

To be read beside native/include/ops.h: one function per op, with its shapes, and no cleverness.
Knows nothing of plans, arenas, instruction-set rows or threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Config = Mapping[str, Any]  # config.json
Weights = Mapping[str, NDArray[Any]]  # by Hugging Face name

MASK64 = (1 << 64) - 1
GOLDEN64 = 0x9E3779B97F4A7C15


# --- ops ----------------------------------------------------------------------------------------


def embed(table: ArrayLike, tokens: Sequence[int]) -> Array:
    """y[R, dim] = table[tokens[R], :]"""
    return np.asarray(table, np.float64)[list(tokens)]


def rms_norm(x: Array, weight: ArrayLike, eps: float) -> Array:
    """y[..., dim] = x / sqrt(mean(x^2) + eps) * weight"""
    mean: Array = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean + eps) * np.asarray(weight, np.float64)


def linear(x: Array, weight: ArrayLike, bias: ArrayLike | None = None) -> Array:
    """y[R, n] = x[R, k] . weight[n, k]^T + bias[n]"""
    y: Array = x @ np.asarray(weight, np.float64).T
    return y if bias is None else y + np.asarray(bias, np.float64)


def gated_linear(x: Array, gate: ArrayLike, up: ArrayLike) -> Array:
    """y[R, n] = silu(x . gate^T) * (x . up^T)"""
    opened = linear(x, gate)
    return opened / (1 + np.exp(-opened)) * linear(x, up)


def rope_angles(positions: Sequence[int], inv_freq: ArrayLike, scale: float = 1.0) -> Array:
    """angles[R, 2, half]: cosines, then sines. The product is rounded to f32, as the op's is."""
    column = np.asarray(positions, np.float32)[:, None]
    angles = (column * np.asarray(inv_freq, np.float32)).astype(np.float64)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * scale


def rope(x: Array, angles: Array, adjacent: bool = False) -> Array:
    """x[R, n_heads, head_dim], its first 2 * half elements rotated: pairs (i, i + half), or
    adjacent ones (2i, 2i + 1); the rest pass through."""
    half = angles.shape[2]
    first, second = slice(0, half), slice(half, 2 * half)
    if adjacent:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    cosines, sines = angles[:, None, 0], angles[:, None, 1]
    y = x.copy()
    y[..., first] = x[..., first] * cosines - x[..., second] * sines
    y[..., second] = x[..., second] * cosines + x[..., first] * sines
    return y


def attention(q: Array, k: Array, v: Array, positions: Sequence[int], scale: float) -> Array:
    """y[R, n_heads, head_dim] = softmax(scale * q . k^T) . v; k and v are one slot's
    [context, n_kv_heads, head_dim] and row r attends to positions 0..positions[r]."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("rhd,phd->rhp", q, k) * scale
    hidden = np.arange(len(k))[None, :] > np.asarray(positions)[:, None]
    weights = softmax(np.where(hidden[:, None, :], -np.inf, scores))
    y: Array = np.einsum("rhp,phd->rhd", weights, v)
    return y


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total: Array = weights.sum(axis=-1, keepdims=True)
    return weights / total


def log_softmax(scores: ArrayLike) -> Array:
    """Log-probabilities of rows of logits."""
    values = np.asarray(scores, np.float64)
    shifted = values - values.max(axis=-1, keepdims=True)
    total: Array = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted - total


# --- rotary frequencies -------------------------------------------------------------------------


def rope_settings(config: Config) -> dict[str, Any]:
    """rope_type, rope_theta and the rest, from either of the two spellings of config.json."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    settings = {"rope_theta": config.get("rope_theta", 10000.0), **given}
    settings.setdefault("rope_type", settings.get("type", "default"))
    settings.setdefault(
        "original_max_position_embeddings", config.get("max_position_embeddings", 0)
    )
    return settings


def head_dim(config: Config) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def inverse_frequencies(config: Config) -> tuple[Array, float]:
    """inv_freq[head_dim / 2] and the factor on cosines and sines."""
    settings = rope_settings(config)
    exponents = np.arange(0, head_dim(config), 2) / head_dim(config)
    plain = settings["rope_theta"] ** -exponents
    kind, factor = settings["rope_type"], settings.get("factor", 1.0)
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        return llama3_frequencies(plain, settings), 1.0
    if kind == "yarn":
        attention_factor = settings.get("attention_factor") or 0.1 * math.log(factor) + 1
        return yarn_frequencies(plain, settings, head_dim(config)), attention_factor
    assert kind == "default", kind
    return plain, 1.0


def llama3_frequencies(plain: Array, settings: Config) -> Array:
    """Long wavelengths are slowed by the factor, short ones kept, those between blended."""
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    turns = settings["original_max_position_embeddings"] * plain / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    blended: Array = (1 - kept) * plain / settings["factor"] + kept * plain
    return blended


def yarn_frequencies(plain: Array, settings: Config, dim: int) -> Array:
    """As llama3, with the blend linear in the index between two numbers of whole turns."""

    def index_of(turns: float) -> float:
        length = settings["original_max_position_embeddings"]
        return dim * math.log(length / (turns * 2 * np.pi)) / (2 * math.log(settings["rope_theta"]))

    low = max(math.floor(index_of(settings.get("beta_fast", 32))), 0)
    high = min(math.ceil(index_of(settings.get("beta_slow", 1))), dim - 1)
    kept = 1 - np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    blended: Array = (1 - kept) * plain / settings["factor"] + kept * plain
    return blended


# --- a whole model ------------------------------------------------------------------------------


def forward(
    config: Config, weights: Weights, tokens: Sequence[int], adjacent: bool = False
) -> Array:
    """logits[len(tokens), vocab] of a llama, qwen2 or qwen3 model over one whole sequence.

    adjacent says that q and k rows are stored for adjacent rotary pairs (GGUF's llama)."""
    inv_freq, factor = inverse_frequencies(config)
    angles = rope_angles(range(len(tokens)), inv_freq, factor)
    eps = config["rms_norm_eps"]
    x = embed(weights["model.embed_tokens.weight"], tokens)
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        h = rms_norm(x, weights[layer + "input_layernorm.weight"], eps)
        x = x + self_attention(config, weights, layer + "self_attn.", h, angles, adjacent)
        h = rms_norm(x, weights[layer + "post_attention_layernorm.weight"], eps)
        gate, up = weights[layer + "mlp.gate_proj.weight"], weights[layer + "mlp.up_proj.weight"]
        h = gated_linear(h, gate, up)
        x = x + project(weights, layer + "mlp.down_proj", h)
    x = rms_norm(x, weights["model.norm.weight"], eps)
    return linear(x, weights.get("lm_head.weight", weights["model.embed_tokens.weight"]))


def project(weights: Weights, name: str, x: Array) -> Array:
    return linear(x, weights[name + ".weight"], weights.get(name + ".bias"))


def self_attention(
    config: Config, weights: Weights, name: str, x: Array, angles: Array, adjacent: bool
) -> Array:
    """The attention of one layer, from the normed input to the output projection."""
    n_rows, dim, eps = len(x), head_dim(config), config["rms_norm_eps"]
    q = project(weights, name + "q_proj", x).reshape(n_rows, -1, dim)
    k = project(weights, name + "k_proj", x).reshape(n_rows, -1, dim)
    v = project(weights, name + "v_proj", x).reshape(n_rows, -1, dim)
    if name + "q_norm.weight" in weights:
        q = rms_norm(q, weights[name + "q_norm.weight"], eps)
        k = rms_norm(k, weights[name + "k_norm.weight"], eps)
    q, k = rope(q, angles, adjacent), rope(k, angles, adjacent)
    y = attention(q, k, v, range(n_rows), dim**-0.5)
    return project(weights, name + "o_proj", y.reshape(n_rows, -1))


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


def adjusted(
    logits: NDArray[np.float32],
    bias: Sequence[tuple[int, float]] = (),
    generated: Sequence[int] = (),
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
) -> NDArray[np.float32]:
    """Bias, then presence and frequency penalties, each step in f32 as the product's scores are."""
    scores = logits.astype(np.float32).copy()
    presence, frequency = np.float32(presence_penalty), np.float32(frequency_penalty)
    for token, value in bias:
        scores[token] += np.float32(value)
    for token in set(generated):
        scores[token] -= presence + frequency * np.float32(list(generated).count(token))
    return scores


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


def top_tokens(logits: NDArray[np.float32], n: int) -> list[int]:
    """The n largest, the lowest id of equals first."""
    order = np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))
    return [int(token) for token in order[:n]]


def candidates(
    logits: NDArray[np.float32],
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    recent: Sequence[int] = (),
    forbidden: Sequence[int] = (),
    **adjustments: Any,
) -> tuple[NDArray[np.intp], Array]:
    """The token ids that may be drawn, ascending, and their probabilities."""
    scores = penalised(adjusted(logits, **adjustments), repetition_penalty, recent)
    order = np.lexsort((np.arange(len(scores)), -scores))
    order = order[~np.isin(order, forbidden)]
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
