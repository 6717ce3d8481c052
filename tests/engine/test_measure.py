"""What `caldrix bench` runs: the same work in every round, counted by the plan's own notes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny

from caldrix import native
from caldrix.compile.program import Program
from caldrix.engine import measure
from caldrix.engine.load import LoadOptions, load_program
from caldrix.engine.measure import Limits, Stopwatch, Work, cost_of, measure_speeds

TIED = next(model for model in tiny.MODELS if model.name == "llama-tied")
WORK = Work(lengths=(5, 9), depths=(4, 20), n_new=3)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny.write_model(tmp_path / "model", TIED)


def opened(directory: Path, **options: int) -> Program:
    return load_program(
        directory, LoadOptions(dtype="f32", max_out=options.get("n_slots", 1), **options)
    )


@pytest.fixture
def program(directory: Path) -> Iterator[Program]:
    made = opened(directory, threads=1, n_slots=3, max_rows=4)
    yield made
    made.close()


def test_a_round_measures_what_was_asked_for(program: Program) -> None:
    speeds = measure_speeds(program, WORK)
    assert list(speeds.prefill) == [5, 9]
    assert sorted(speeds.decode) == [4, 20]
    assert all(speed > 0 for speed in (*speeds.prefill.values(), *speeds.decode.values()))
    assert speeds.together is not None
    assert speeds.together > 0


def test_every_round_computes_the_same_on_any_threads(directory: Path, program: Program) -> None:
    checksum = measure_speeds(program, WORK).checksum
    assert checksum == measure_speeds(program, WORK).checksum
    assert checksum != measure_speeds(program, Work((5, 9), (4, 20), 4)).checksum
    other = opened(directory, threads=2, n_slots=3)
    assert checksum == measure_speeds(other, WORK).checksum
    other.close()


def test_one_slot_decodes_nothing_together(directory: Path) -> None:
    program = opened(directory, threads=1)
    assert measure_speeds(program, WORK).together is None
    program.close()


def test_decoding_follows_the_made_up_prompt(program: Program) -> None:
    """The greedy tokens are those of the same prompt run afresh, whatever was decoded before."""
    fresh, used = Stopwatch(program), Stopwatch(program)
    fresh.prompt(0, 20)
    fresh.checksum = 0
    fresh.decode(20, 3)
    used.prompt(0, 30)
    used.decode(20, 3)
    used.decode(4, 3)
    used.prompt(4, 20)
    used.checksum = 0
    used.decode(20, 3)
    assert fresh.checksum == used.checksum != 0


def test_the_context_of_the_work() -> None:
    assert WORK.context == 23
    assert Work((40,), (4,), 3).context == 40


def test_the_cost_is_that_of_the_weights(program: Program) -> None:
    shapes = tiny.shapes(TIED.config_json())
    matrices = {name: a * b for name, (a, b) in ((n, s) for n, s in shapes.items() if len(s) == 2)}
    embedding = matrices.pop("model.embed_tokens.weight")  # tied: the output reads all of it
    cost = cost_of(program)
    assert cost.weight_bytes == 4 * (sum(matrices.values()) + embedding)
    assert cost.row_flops == 2 * sum(matrices.values())
    assert cost.out_flops == 2 * embedding
    assert cost.prefill_flops(10) == 10 * cost.row_flops + cost.out_flops


def test_the_limits_are_measured_over_data_that_is_always_the_same() -> None:
    row = native.rows()[0]
    one, two = (Limits(measure.BUFFER_UNIT).measure(row, 1, 0.0) for _ in range(2))
    assert list(one) == list(native.LIMITS)
    for name in native.LIMITS:
        assert one[name].per_second > 0
        assert one[name].checksum == two[name].checksum


@pytest.mark.parametrize(
    ("cache", "memory", "wanted"),
    [
        ("32768K\n", 64 << 30, 512 << 20),
        ("", 64 << 30, 512 << 20),
        ("unknown", None, 512 << 20),
        ("524288K", 64 << 30, 2048 << 20),
        ("32768K", 400_000_000, 100_000_000 // measure.BUFFER_UNIT * measure.BUFFER_UNIT),
        ("32768K", 10, measure.BUFFER_UNIT),
    ],
)
def test_the_buffer_is_larger_than_the_last_cache_and_fits(
    cache: str, memory: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "read", lambda path: cache)
    monkeypatch.setattr(measure, "memory_limit", lambda: memory)
    assert measure._buffer_bytes() == wanted
