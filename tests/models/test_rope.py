"""Inverse frequencies against the formulas of their papers, worked in float64."""

import math

import numpy as np
import pytest

from caldrix.errors import RefusedError
from caldrix.models.rope import RopeConfig, inverse_frequencies, scaled_frequencies


def test_default_is_a_geometric_series() -> None:
    got, scale = inverse_frequencies(RopeConfig("default", 10000.0, 8))
    assert scale == 1.0
    assert np.allclose(got, [1.0, 0.1, 0.01, 0.001], rtol=1e-6)


def test_linear_divides_every_frequency() -> None:
    plain, _ = inverse_frequencies(RopeConfig("default", 1e5, 16))
    got, scale = inverse_frequencies(RopeConfig("linear", 1e5, 16, factor=4.0))
    assert scale == 1.0
    assert np.array_equal(got, plain / np.float32(4))


def test_llama3_keeps_short_waves_and_slows_long_ones() -> None:
    rope = RopeConfig("llama3", 500000.0, 128, factor=8.0, original_max_position_embeddings=8192)
    got, _ = inverse_frequencies(rope)
    plain, _ = inverse_frequencies(RopeConfig("default", 500000.0, 128))
    for f, base in zip(got.tolist(), plain.tolist(), strict=True):
        wavelength = 2 * math.pi / base
        if wavelength < 8192 / 4:
            want = base
        elif wavelength > 8192:
            want = base / 8
        else:
            s = (8192 / wavelength - 1) / 3
            want = (1 - s) * base / 8 + s * base
        assert f == pytest.approx(want, rel=1e-6)
    assert got[0] == plain[0]
    assert got[-1] == plain[-1] / np.float32(8)


def test_yarn_ramps_between_interpolation_and_extrapolation() -> None:
    rope = RopeConfig("yarn", 10000.0, 64, factor=4.0, original_max_position_embeddings=2048)
    got, scale = inverse_frequencies(rope)
    plain, _ = inverse_frequencies(RopeConfig("default", 10000.0, 64))
    assert scale == pytest.approx(0.1 * math.log(4) + 1)
    assert got[0] == plain[0]
    assert got[-1] == pytest.approx(plain[-1] / 4, rel=1e-6)
    ratio = got / plain
    assert np.all(np.diff(ratio) <= 1e-6)


def test_yarn_attention_factor_is_taken_when_given() -> None:
    rope = RopeConfig(
        "yarn", 1e4, 64, factor=4.0, original_max_position_embeddings=2048, attention_factor=1.5
    )
    assert inverse_frequencies(rope)[1] == 1.5
    both = RopeConfig(
        "yarn", 1e4, 64, 4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.5
    )
    want = (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)
    assert inverse_frequencies(both)[1] == pytest.approx(want)


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_factors_that_leave_no_frequency_are_refused(kind: str) -> None:
    rope = RopeConfig(kind, 1e4, 8, factor=1e-45, original_max_position_embeddings=64)
    with pytest.raises(RefusedError, match=r"^file: rope scaling by 1e-45"):
        scaled_frequencies(rope, None, "file")


def test_divisors_of_the_checkpoint_divide_every_frequency() -> None:
    rope = RopeConfig("default", 10000.0, 8)
    got, _ = scaled_frequencies(rope, np.float32([1, 2, 4, 8]), "file")
    assert np.array_equal(got, inverse_frequencies(rope)[0] / np.float32([1, 2, 4, 8]))
    with pytest.raises(RefusedError, match="not finite"):
        scaled_frequencies(rope, np.float32([1, 2, 4, 1e-45]), "file")
