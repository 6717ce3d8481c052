"""What `caldrix bench` runs: the same work in every round, counted by the plan's own notes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny

from caldrix.compile.program import Program
from caldrix.engine.load import LoadOptions, load_program
from caldrix.engine.measure import Others, ProgramSteps, Stopwatch, Work, measure_speeds

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
def model(directory: Path) -> Iterator[ProgramSteps]:
    program = opened(directory, threads=1, n_slots=3, max_rows=4)
    yield ProgramSteps(program)
    program.close()


def test_a_round_measures_what_was_asked_for(model: ProgramSteps) -> None:
    speeds = measure_speeds(model, WORK)
    assert list(speeds.prefill) == [5, 9]
    assert sorted(speeds.decode) == [4, 20]
    assert all(speed > 0 for speed in (*speeds.prefill.values(), *speeds.decode.values()))
    assert speeds.together is not None
    assert speeds.together > 0


def test_every_round_computes_the_same_on_any_threads(directory: Path, model: ProgramSteps) -> None:
    checksum = measure_speeds(model, WORK).checksum
    assert checksum == measure_speeds(model, WORK).checksum
    assert checksum != measure_speeds(model, Work((5, 9), (4, 20), 4)).checksum
    other = opened(directory, threads=2, n_slots=3)
    assert checksum == measure_speeds(ProgramSteps(other), WORK).checksum
    other.close()


def test_one_slot_decodes_nothing_together(directory: Path) -> None:
    program = opened(directory, threads=1)
    assert measure_speeds(ProgramSteps(program), WORK).together is None
    program.close()


def test_decoding_follows_the_made_up_prompt(model: ProgramSteps) -> None:
    """The greedy tokens are those of the same prompt run afresh, whatever was decoded before."""
    fresh, used = Stopwatch(model), Stopwatch(model)
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


def stat(root: Path, *ticks: int) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/stat").write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2\n")


def test_the_part_that_others_take(tmp_path: Path) -> None:
    """100 ticks a second: 2 of 10 processor seconds idle or waiting, 3 of this program."""
    own = iter([1.0, 4.0, 9.0])
    stat(tmp_path, 1000, 0, 100, 5000, 7, 0, 3, 1, 0, 0)
    others = Others(lambda: next(own), tmp_path)
    stat(tmp_path, 1300, 100, 300, 5100, 107, 100, 53, 51, 0, 0)
    assert others.part() == pytest.approx((8 - 3) / 10)
    assert others.part() == 0.0  # this program cannot have used more than there was


@pytest.mark.parametrize(
    "text", ["", "cpu 1 2 3\n", "intr 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h\n"]
)
def test_a_system_that_says_nothing_of_others(text: str, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text)
    assert Others(root=tmp_path).part() is None
    assert Others(root=tmp_path / "nowhere").part() is None
