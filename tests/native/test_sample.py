"""The native sampler: each rule alone, random settings against the reference, and the draws."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import reference
from numpy.typing import NDArray

OK, NOT_FINITE = 0, 1
INFINITY = float("inf")


U32_POINTER = ctypes.POINTER(ctypes.c_uint32)
PICKED, MAX_TOP = 2**32 - 1, 20


class Bias(ctypes.Structure):
    _fields_ = (("token", ctypes.c_uint32), ("value", ctypes.c_float))


class Adjust(ctypes.Structure):
    _fields_ = (
        ("presence_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
        ("n_bias", ctypes.c_uint32),
        ("n_generated", ctypes.c_uint32),
        ("bias", ctypes.POINTER(Bias)),
        ("generated", U32_POINTER),
        ("allowed", U32_POINTER),
    )


class Logprobs(ctypes.Structure):
    _fields_ = (
        ("wanted", ctypes.c_uint32),
        ("n_top", ctypes.c_uint32),
        ("token", ctypes.c_uint32),
        ("logprob", ctypes.c_float),
        ("top_tokens", ctypes.c_uint32 * MAX_TOP),
        ("top_logprobs", ctypes.c_float * MAX_TOP),
    )


class Sampling(ctypes.Structure):
    _fields_ = (
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("repetition_penalty", ctypes.c_float),
        ("top_k", ctypes.c_uint32),
        ("n_recent", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("draw", ctypes.c_uint64),
        ("recent", U32_POINTER),
        ("adjust", ctypes.POINTER(Adjust)),
    )


class Sampler:
    """cx_sample over one row of logits; the scratch ends with bytes that must survive."""

    def __init__(self, library: ctypes.CDLL, logits: Sequence[float] | NDArray[np.float32]) -> None:
        self.logits = np.ascontiguousarray(logits, np.float32)
        self.library = library
        self.n_scratch = library.cx_sample_scratch(len(self.logits))
        self.scratch = np.full(self.n_scratch + 64, 0xA5, np.uint8)
        self.picked = ctypes.c_uint32()

    def status(
        self,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        recent: Sequence[int] = (),
        seed: int = 0,
        draw: int = 0,
        **adjustments: Any,
    ) -> int:
        recent_ids = (ctypes.c_uint32 * len(recent))(*recent)
        numbers = (temperature, top_p, min_p, repetition_penalty, top_k, len(recent), seed, draw)
        adjust = adjust_of(len(self.logits), **adjustments) if adjustments else None
        sampling = Sampling(*numbers, recent_ids, ctypes.pointer(adjust) if adjust else None)
        before = self.logits.copy()
        status: int = self.library.cx_sample(
            self.logits.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_uint32(len(self.logits)),
            ctypes.byref(sampling),
            self.scratch.ctypes.data_as(ctypes.c_void_p),
            ctypes.byref(self.picked),
        )
        assert (self.scratch[self.n_scratch :] == 0xA5).all()
        np.testing.assert_array_equal(before.view(np.uint32), self.logits.view(np.uint32))
        return status

    def pick(self, **settings: Any) -> int:
        assert self.status(**settings) == OK
        return self.picked.value

    def picks(self, n: int = 200, **settings: Any) -> set[int]:
        return {self.pick(draw=draw, **settings) for draw in range(n)}

    def score(self, token: int, n_top: int, picked: int = 0) -> Logprobs:
        scored = Logprobs(1, n_top, token)
        self.library.cx_score(
            self.logits.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_uint32(len(self.logits)),
            ctypes.c_uint32(picked),
            self.scratch.ctypes.data_as(ctypes.c_void_p),
            ctypes.byref(scored),
        )
        assert (self.scratch[self.n_scratch :] == 0xA5).all()
        return scored


def adjust_of(
    vocab: int,
    *,
    bias: Sequence[tuple[int, float]] = (),
    generated: Sequence[int] = (),
    forbidden: Sequence[int] | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
) -> Adjust:
    adjust = Adjust(presence_penalty, frequency_penalty, len(bias), len(generated))
    adjust.bias = (Bias * len(bias))(*(Bias(*entry) for entry in bias))
    adjust.generated = (ctypes.c_uint32 * len(generated))(*generated)
    if forbidden is not None:
        words = [2**32 - 1] * (-(-vocab // 32))
        for token in forbidden:
            words[token // 32] &= ~(1 << token % 32)
        adjust.allowed = (ctypes.c_uint32 * len(words))(*words)
    return adjust


def random_logits(rng: np.random.Generator, n: int, spread: float) -> NDArray[np.float32]:
    return (rng.standard_normal(n) * spread).astype(np.float32)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000, 4097])
def test_temperature_zero_takes_the_lowest_id_of_the_largest(library: ctypes.CDLL, n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(20):
        logits = rng.integers(-3, 4, n).astype(np.float32)
        logits[logits == 0] *= rng.choice([-1, 1], (logits == 0).sum())
        sampler = Sampler(library, logits)
        assert sampler.pick(temperature=0, top_k=3, top_p=0.1) == int(np.argmax(logits))


def test_minus_zero_equals_zero(library: ctypes.CDLL) -> None:
    assert Sampler(library, [-1, -0.0, 0.0]).pick(temperature=0) == 1
    assert Sampler(library, [-0.0, 0.0, -1]).picks(top_k=1) == {0}


def test_penalty_counts_a_repeat_once_and_ignores_ids_outside(library: ctypes.CDLL) -> None:
    sampler = Sampler(library, [3.0, 2.0, -1.0])
    assert sampler.pick(temperature=0, repetition_penalty=1.4, recent=[0, 0, 0, 7, 2**32 - 1]) == 0
    assert sampler.pick(temperature=0, repetition_penalty=1.6, recent=[0]) == 1
    negative = Sampler(library, [-3.0, -3.5])
    assert negative.pick(temperature=0, repetition_penalty=1.2, recent=[0]) == 1
    assert negative.pick(temperature=0, repetition_penalty=0.5, recent=[1]) == 1


def test_a_penalty_that_leaves_f32_stays_finite(library: ctypes.CDLL) -> None:
    sampler = Sampler(library, [1e30, -1e30, 5.0])
    assert sampler.pick(temperature=0, repetition_penalty=1e-30, recent=[0, 1, 2]) == 0
    assert sampler.pick(temperature=0, repetition_penalty=1e30, recent=[0, 1]) == 2


@pytest.mark.parametrize("bad", [INFINITY, -INFINITY, float("nan")])
@pytest.mark.parametrize("at", [0, 70, 129])
def test_a_logit_that_is_not_finite_is_reported(library: ctypes.CDLL, bad: float, at: int) -> None:
    logits = np.zeros(130, np.float32)
    logits[at] = bad
    sampler = Sampler(library, logits)
    for settings in [{"temperature": 0}, {"top_k": 2}, {"repetition_penalty": 2, "recent": [at]}]:
        assert sampler.status(**settings) == NOT_FINITE
        assert sampler.picked.value == 0


def test_bias_comes_first_and_every_entry_counts(library: ctypes.CDLL) -> None:
    sampler = Sampler(library, [3.0, 2.0, -1.0])
    assert sampler.pick(temperature=0, bias=[(1, 1.5)]) == 1
    assert sampler.pick(temperature=0, bias=[(2, 2.5), (2, 2.5), (9, 100)]) == 2
    # the penalty sees what the bias left: 3 - 4 is negative, so it is multiplied
    both = {"bias": [(0, -4.0), (1, -2.5)], "repetition_penalty": 0.1, "recent": [0, 2]}
    assert sampler.pick(temperature=0, **both) == 0


def test_presence_counts_once_and_frequency_each_time(library: ctypes.CDLL) -> None:
    sampler = Sampler(library, [3.0, 2.4, 1.0])
    assert sampler.pick(temperature=0, generated=[0, 0, 0, 7], presence_penalty=0.5) == 0
    assert sampler.pick(temperature=0, generated=[0, 0, 0], presence_penalty=0.7) == 1
    assert sampler.pick(temperature=0, generated=[0, 1, 0, 0], frequency_penalty=0.25) == 0
    assert sampler.pick(temperature=0, generated=[0, 1, 0, 0], frequency_penalty=0.35) == 1
    assert sampler.pick(temperature=0, generated=[2, 2], frequency_penalty=-1.1) == 2


def test_the_penalties_follow_one_another(library: ctypes.CDLL) -> None:
    # 3 - 2 = 1, halved: below 0.6; without the first step it would stay above
    sampler = Sampler(library, [3.0, 0.6])
    settings = {"temperature": 0, "repetition_penalty": 2.0, "recent": [0, 0]}
    assert sampler.pick(**settings) == 0
    assert sampler.pick(**settings, generated=[0], presence_penalty=2.0) == 1


@pytest.mark.parametrize("temperature", [0, 0.7, 3e38])
def test_a_token_that_the_mask_forbids_is_never_picked(
    library: ctypes.CDLL, temperature: float
) -> None:
    logits = np.full(130, -3e38, np.float32)
    logits[[3, 64, 129]] = 9.0
    sampler = Sampler(library, logits)
    only = [t for t in range(130) if t not in (64, 100)]
    for cuts in [{}, {"top_k": 70}, {"top_p": 0.9}, {"min_p": 0.5}, {"bias": [(3, 100.0)]}]:
        picks = sampler.picks(temperature=temperature, forbidden=only, **cuts)
        assert picks <= {64, 100}, cuts
        assert 64 in picks
    assert sampler.pick(temperature=temperature, forbidden=range(1, 130)) == 0


@pytest.mark.parametrize("bad", [INFINITY, -INFINITY, float("nan")])
def test_no_adjustment_hides_a_logit_that_is_not_finite(library: ctypes.CDLL, bad: float) -> None:
    sampler = Sampler(library, [0.0, bad, 1.0])
    for adjustments in [
        {"bias": [(1, 5.0)]},
        {"generated": [1, 1], "presence_penalty": 1},
        {"forbidden": [1]},
    ]:
        assert sampler.status(temperature=0, **adjustments) == NOT_FINITE


def test_no_adjustment_leaves_f32(library: ctypes.CDLL) -> None:
    sampler = Sampler(library, [3.4e38, -3.4e38, 5.0])
    far = {"bias": [(0, 3e38), (1, -3e38)], "generated": [0, 1], "frequency_penalty": -3e38}
    assert sampler.pick(temperature=0, **far) == 0
    assert sampler.status(temperature=1, **far) == OK


@pytest.mark.parametrize("n", [1, 2, 19, 20, 21, 64, 65, 1000, 50_000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_scores_equal_the_reference(library: ctypes.CDLL, n: int, spread: float) -> None:
    rng = np.random.default_rng([n, int(spread)])
    logits = random_logits(rng, n, spread)
    if spread == 1.0:  # many equals
        logits = np.round(logits * 3) / np.float32(3)
    expected = reference.log_softmax(logits)
    sampler = Sampler(library, logits)
    for n_top in (0, 1, 5, 20):
        token = int(rng.integers(n))
        scored = sampler.score(token, n_top)
        assert scored.token == token
        assert scored.logprob == pytest.approx(expected[token], rel=2e-7, abs=1e-6)
        top = scored.top_tokens[: scored.n_top]
        assert top == reference.top_tokens(logits, n_top)
        assert scored.top_logprobs[: scored.n_top] == pytest.approx(
            expected[top].tolist(), rel=2e-7, abs=1e-6
        )
        assert list(scored.top_logprobs[: scored.n_top]) == sorted(
            scored.top_logprobs[: scored.n_top], reverse=True
        )


def test_the_picked_token_is_scored_when_asked_for(library: ctypes.CDLL) -> None:
    scored = Sampler(library, [0.0, 1.0]).score(PICKED, 0, picked=1)
    assert (scored.token, scored.n_top) == (1, 0)
    assert scored.logprob == pytest.approx(-0.3132617)


def test_scores_are_finite_at_the_ends_of_f32(library: ctypes.CDLL) -> None:
    scored = Sampler(library, [3.4e38, -3.4e38, 0.0]).score(1, 3)
    assert np.isfinite([scored.logprob, *scored.top_logprobs[:3]]).all()
    assert scored.top_logprobs[0] == 0.0
    assert scored.top_tokens[:3] == [0, 2, 1]


def test_minus_zero_ties_with_zero_in_the_scores(library: ctypes.CDLL) -> None:
    assert Sampler(library, [-0.0, 0.0, -0.0]).score(0, 2).top_tokens[:2] == [0, 1]


def test_top_k_breaks_ties_by_lowest_id_and_is_off_at_the_vocabulary(library: ctypes.CDLL) -> None:
    sampler = Sampler(library, [1, 2, 1, 2, 1, 0.5])
    assert sampler.picks(top_k=1) == {1}
    assert sampler.picks(top_k=3) == {0, 1, 3}
    assert sampler.picks(top_k=4) == {0, 1, 2, 3}
    for top_k in (0, 6, 7, 2**32 - 1):
        assert sampler.picks(top_k=top_k) == {0, 1, 2, 3, 4, 5}


def test_top_p_keeps_the_smallest_set_that_reaches_p(library: ctypes.CDLL) -> None:
    sampler = Sampler(library, np.log(np.array([0.125, 0.5, 0.25, 0.125], np.float32)))
    assert sampler.picks(top_p=1e-30) == {1}
    assert sampler.picks(top_p=0.49) == {1}
    assert sampler.picks(top_p=0.74) == {1, 2}
    assert sampler.picks(top_p=0.76) == {0, 1, 2}
    assert sampler.picks(top_p=0.999) == {0, 1, 2, 3}
    equals = Sampler(library, [3.0] * 100)
    assert equals.picks(2000, top_p=0.25) == set(range(25))


def test_top_p_counts_within_what_top_k_left(library: ctypes.CDLL) -> None:
    sampler = Sampler(library, np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32)))
    assert sampler.picks(top_p=0.55) == {0, 1}
    assert sampler.picks(top_p=0.55, top_k=2) == {0}


def test_min_p_drops_what_is_below_its_share_of_the_largest(library: ctypes.CDLL) -> None:
    sampler = Sampler(library, [0.0, -0.6, -1.0, -3.0, 0.0, -1e-6])
    assert sampler.picks(min_p=0.5) == {0, 1, 4, 5}  # log 0.5 is -0.69
    assert sampler.picks(min_p=1.0) == {0, 4}
    assert sampler.picks(min_p=1e-45) == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("temperature", [1e-45, 1e-12, 1e-3])
def test_a_tiny_temperature_draws_among_the_largest_only(
    library: ctypes.CDLL, temperature: float
) -> None:
    assert Sampler(library, [1, 9, -3e38, 9, 3]).picks(temperature=temperature) == {1, 3}


def test_a_temperature_below_f32_is_zero(library: ctypes.CDLL) -> None:
    assert Sampler(library, [1, 9, -4, 9, 3]).picks(temperature=5e-324) == {1}


@pytest.mark.parametrize("temperature", [1e30, 3e38])
def test_a_huge_temperature_is_uniform(library: ctypes.CDLL, temperature: float) -> None:
    sampler = Sampler(library, [1, 9, -4, 3])
    assert sampler.picks(temperature=temperature) == {0, 1, 2, 3}
    sampler = Sampler(library, [3e38, -3e38])
    assert sampler.status(temperature=temperature) == OK


def chi_square(counts: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("vary", ["draw", "seed"])
def test_draws_follow_the_probabilities(library: ctypes.CDLL, vary: str) -> None:
    n = 20000
    logits = np.linspace(-2, 2, 100).astype(np.float32)[::-1].copy()
    sampler = Sampler(library, logits)
    settings = {"temperature": 1.5, "top_k": 90, "top_p": 0.97, "min_p": 0.03}
    ids, probabilities = reference.candidates(logits, **settings)
    drawn = [sampler.pick(**{vary: i}, **settings) for i in range(n)]
    counts = np.bincount(drawn, minlength=100).astype(np.float64)
    assert counts.sum() == counts[ids].sum()
    n_free = len(ids) - 1
    assert n_free > 50
    # Wilson and Hilferty: five standard deviations of the chi-square distribution
    limit = n_free * (1 - 2 / (9 * n_free) + 5 * (2 / (9 * n_free)) ** 0.5) ** 3
    assert chi_square(counts[ids], n * probabilities) < limit
    # neighbours are independent: pairs of "above the median" are a quarter each
    above = np.array(drawn) > np.median(drawn)
    pairs = np.bincount(above[:-1] * 2 + above[1:], minlength=4).astype(np.float64)
    share = above.mean()
    expected = (n - 1) * np.outer([1 - share, share], [1 - share, share]).ravel()
    assert chi_square(pairs, expected) < 25


def random_settings(rng: np.random.Generator, n: int) -> dict[str, Any]:
    def maybe(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.6 else off

    return {
        "temperature": float(np.float32(rng.choice([0, 0.05, 0.7, 1, 1.3, 20]))),
        "top_k": maybe(int(rng.integers(1, n + 5)), 0),
        "top_p": float(np.float32(maybe(rng.choice([0.01, 0.3, 0.9, 0.999]), 1.0))),
        "min_p": float(np.float32(maybe(rng.choice([0.001, 0.05, 0.7]), 0.0))),
        "repetition_penalty": float(np.float32(maybe(rng.choice([0.7, 1.1, 3]), 1.0))),
        "recent": rng.integers(0, n, rng.integers(0, 65)).tolist(),
    } | (random_adjustments(rng, n) if rng.random() < 0.5 else {})


def random_adjustments(rng: np.random.Generator, n: int) -> dict[str, Any]:
    biased = rng.integers(0, n, rng.integers(0, 9)).tolist()
    forbidden = rng.integers(0, n, rng.integers(0, 9)).tolist()
    return {
        "bias": [(token, float(np.float32(rng.uniform(-5, 5)))) for token in biased],
        "generated": rng.integers(0, min(n, 20), rng.integers(0, 30)).tolist(),
        "presence_penalty": float(np.float32(rng.choice([0, 0.5, -2]))),
        "frequency_penalty": float(np.float32(rng.choice([0, 0.25, -1]))),
        "forbidden": [token for token in forbidden if token != 0],
    }


@pytest.mark.parametrize("n", [1, 7, 64, 300, 5000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0, 60.0])
def test_picks_equal_the_reference(library: ctypes.CDLL, n: int, spread: float) -> None:
    rng = np.random.default_rng([n, int(spread * 100)])
    for case in range(60):
        logits = random_logits(rng, n, spread)
        if case % 3 == 0:  # many equals
            logits = np.round(logits * 2 / spread).astype(np.float32)
        settings = random_settings(rng, n)
        seed, draw = int(rng.integers(0, 2**63)) * 2 + case % 2, int(rng.integers(0, 2**40))
        got = Sampler(library, logits).pick(seed=seed, draw=draw, **settings)
        ids, probabilities = reference.candidates(logits, **settings)
        assert got in ids, (case, settings)
        # the kernel's weights are f32: a draw this close to a token's edge may fall on either side
        upper = np.cumsum(probabilities)[np.flatnonzero(ids == got)[0]]
        lower = upper - probabilities[ids == got][0]
        fraction = reference.uniform(seed, draw)
        assert lower - 3e-6 <= fraction <= upper + 3e-6, (case, settings)


def test_a_seed_and_draw_always_give_the_same_token(library: ctypes.CDLL) -> None:
    logits = random_logits(np.random.default_rng(5), 1000, 2.0)
    drawn = [Sampler(library, logits).pick(seed=42, draw=draw) for draw in range(8)]
    assert drawn == [reference.sample(logits, seed=42, draw=d, temperature=1.0) for d in range(8)]
    assert len(set(drawn)) > 4
