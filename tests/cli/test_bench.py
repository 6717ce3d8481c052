"""`caldrix bench` on a tiny model: its record, its table, what it refuses. No speed is judged."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny

from caldrix.cli import bench
from caldrix.cli.bench_table import figures, table
from caldrix.cli.main import main
from caldrix.engine import limits
from caldrix.errors import EngineError

QUICK = ["--lengths", "4,9", "--depths", "3,12", "--steps", "2", "--rounds", "2"]
MODEL = {
    "name": "m",
    "dtype": "bf16",
    "row": "x86-64-v3",
    "n_slots": 8,
    "weight_bytes": 10**9,
    "row_flops": 10**9,
    "out_flops": 10**9,
}


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits over little memory for no time: they are measured all the same."""
    monkeypatch.setattr(limits, "BUFFER_BYTES", 0)
    monkeypatch.setattr(limits, "CACHE", Path("/nonexistent"))
    monkeypatch.setattr(limits.Limits.measure, "__defaults__", (0.0,))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    qwen3 = next(model for model in tiny.MODELS if model.name == "qwen3")
    return tiny.write_model(tmp_path / "model", qwen3)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["bench", *arguments])
    out, err = capfd.readouterr()
    return status, out, err


def is_a_speed(value: object) -> bool:
    return isinstance(value, float) and value > 0


def check_record(record: dict[str, Any], threads: Sequence[int], n_slots: int = 1) -> None:
    assert set(record) == {
        "format", "caldrix", "date", "machine", "model", "work", "peak_rss_bytes", "runs", "start",
        "flags",
    }  # fmt: skip
    assert record["format"] == bench.FORMAT
    assert record["work"] == {"lengths": [4, 9], "depths": [3, 12], "n_new": 2}
    assert record["peak_rss_bytes"] > 10**7
    assert set(record["machine"]) == {
        "cpu", "cpus", "system", "memory_bytes", "read_buffer_bytes",
    }  # fmt: skip
    model = record["model"]
    assert (model["name"], model["dtype"], model["n_slots"]) == ("model", "bf16", n_slots)
    assert model["weight_bytes"] > 0
    assert model["row_flops"] > model["out_flops"] > 0
    assert [run["threads"] for run in record["runs"]] == list(threads)
    checksums = set()
    for run_ in record["runs"]:
        assert is_a_speed(run_["load_s"])
        assert len(run_["rounds"]) == 2
        for round_ in run_["rounds"]:
            assert set(round_) == {
                "prefill", "decode", "together", "checksum", "limits", "others",
            }  # fmt: skip
            assert round_["others"] is None or 0 <= round_["others"] <= 1
            assert list(round_["prefill"]) == ["4", "9"]
            assert list(round_["decode"]) == ["3", "12"]
            assert all(map(is_a_speed, (*round_["prefill"].values(), *round_["decode"].values())))
            assert (round_["together"] is None) is (n_slots == 1)
            assert list(round_["limits"]) == ["read", "fma", "int8"]
            for limit in round_["limits"].values():
                assert is_a_speed(limit["per_s"])
                assert int(limit["checksum"], 16) != 0
            assert all(is_a_speed(figure.of_limit) for figure in figures(model, round_))
            checksums.add(round_["checksum"])
    assert len(checksums) == 1  # every round, on any threads, computed the same


def test_a_whole_bench(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "record.json"
    status, out, err = run(capfd, str(model), *QUICK, "--json", str(target), "--threads", "2")
    assert status == 0, err
    record = json.loads(target.read_text())
    check_record(record, [2])
    assert [set(start) for start in record["start"]] == 2 * [{"first_token_s", "peak_rss_bytes"}]
    assert all(start["first_token_s"] > 0.01 for start in record["start"])
    assert all(start["peak_rss_bytes"] > 10**7 for start in record["start"])
    assert out == table(record)
    assert "start to first token" in out


def test_json_on_stdout_is_all_of_stdout(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    more = ["--no-start", "--json=-", "--parallel", "3"]
    status, out, err = run(capfd, str(model), *QUICK, *more)
    assert status == 0, err
    record = json.loads(out)
    check_record(record, sorted({1, record["runs"][-1]["threads"]}), n_slots=3)
    assert record["start"] == []
    assert record["flags"] == [*QUICK, *more]
    assert "peak memory " in table(record)


def test_a_start_gets_the_flags_that_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Sequence[str]] = []

    def started(command: Sequence[str]) -> dict[str, float]:
        commands.append(command)
        return {}

    monkeypatch.setattr(bench, "measure_start", started)
    arguments = ["m", "--rounds", "2", "--ctx=64", "--threads", "1", "--parallel", "2"]
    bench.measure_starts(bench.parse("bench", arguments), arguments)
    assert len(commands) == 2
    assert commands[0][:5] == [sys.executable, "-m", "caldrix", "run", "m"]
    assert commands[0][-2:] == ["--max-context=64", "--threads=1"]


def test_a_program_that_does_not_answer_is_an_error() -> None:
    code = "import sys; sys.stderr.write('caldrix: first\\ncaldrix: no such thing\\n'); sys.exit(1)"
    with pytest.raises(EngineError, match="cannot start: no such thing; --no-start leaves it out"):
        bench.measure_start([sys.executable, "-c", code])
    with pytest.raises(EngineError, match="it answered nothing"):
        bench.measure_start([sys.executable, "-c", ""])


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--lengths", "4,0"], 2, "--lengths '4,0': takes whole numbers of 1 or more with commas"),
        (["--depths", ""], 2, "--depths"),
        (["--steps", "0"], 2, "--steps '0'"),
        (["--rounds", "0"], 2, "--rounds '0'"),
        (["--no-start=1"], 2, "--no-start takes no value"),
        (["--json", "/nonexistent/x"], 2, "--json /nonexistent/x: No such file or directory"),
        (["--threads", "0"], 1, "--threads '0'"),
        (["--cpu-isa", "x86-64-v9"], 1, "--cpu-isa"),
        (["-p", "x"], 2, "it belongs to caldrix run"),
        (["--port", "1"], 2, "caldrix bench serves no HTTP"),
        (["--fast"], 1, "unknown flag --fast"),
        (["--no-start", "--lengths", "2000"], 2, "take 2000 tokens of context, which has 1024"),
        (["--no-start", "--depths", "1000"], 2, "take 1032 tokens of context, which has 1024"),
        (["--no-start", "--ctx", "100", "--depths", "1"], 2, "take 512 tokens of context"),
    ],
)
def test_refused_in_one_line(
    arguments: list[str],
    status: int,
    words: str,
    model: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    found, out, err = run(capfd, str(model), *arguments)
    assert (found, out) == (status, "")
    last = err.splitlines()[-1]
    assert last.startswith("caldrix: ")
    assert words in last


def test_a_model_without_a_tokenizer_says_so_before_it_is_measured(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (model / "tokenizer.json").unlink()
    status, out, err = run(capfd, str(model), *QUICK)
    assert (status, out) == (1, "")
    assert "tokenizer" in err.splitlines()[-1]
    assert err.splitlines()[-1].endswith("; --no-start leaves it out")
    assert run(capfd, str(model), *QUICK, "--no-start")[0] == 0


def made_up(threads: int, speed: float) -> dict[str, Any]:
    peaks = {"read": 20e9, "fma": 100e9, "int8": 200e9}
    return {
        "threads": threads,
        "load_s": 1.0,
        "rounds": [
            {
                "prefill": {"10": speed * scale},
                "decode": {"64": 10 * scale},
                "together": 40 * scale,
                "checksum": "ab",
                "others": None if scale == 1 else scale / 2,
                "limits": {
                    name: {"per_s": per_s * scale, "checksum": "cd" * 8}
                    for name, per_s in peaks.items()
                },
            }
            for scale in (1.0, 0.5, 1.5)
        ],
    }


def test_fractions_are_taken_within_a_round() -> None:
    """By hand: 1 GB a step at 10 steps a second of 20 GB/s; 1.1 GFLOP a token at 50 t/s of 100."""
    for round_ in made_up(1, 50.0)["rounds"]:
        found = {figure.label: figure for figure in figures(MODEL, round_)}
        assert found["decode after 64"].of_limit == pytest.approx(0.5)
        assert found["decode 8 together"].of_limit == pytest.approx(40 / 8 / 20)
        assert found["prompt of 10"].of_limit == pytest.approx(0.55)
        exact = figures(MODEL | {"activations": "int8"}, round_)[0]
        assert exact.of_limit == pytest.approx(0.275)
        assert exact.limit == "int8"


def test_the_table_fits_and_shows_medians() -> None:
    record = {
        "model": MODEL,
        "runs": [made_up(1, 50.0), made_up(128, 9876.5)],
        "start": [{"first_token_s": s, "peak_rss_bytes": 2e8} for s in (0.5, 0.3, 9.0)],
        "peak_rss_bytes": 10**8,
    }
    lines = table(record).splitlines()
    assert max(map(len, lines)) <= 100
    rows = {line[:22].strip(): line[22:] for line in lines}
    assert rows["memory read"].split() == 2 * ["20.0", "GB/s", "#cdcdcdcd"]
    assert rows["prompt of 10"].split()[:6] == ["50.0", "t/s", "55", "%", "of", "f32"]
    assert "9876.5 t/s" in rows["prompt of 10"]
    assert rows["decode after 64"].split()[:6] == ["10.0", "t/s", "50", "%", "of", "read"]
    assert rows["start to first token"].strip() == "0.50 s"
    assert rows["other work meanwhile"].split()[:2] == ["50", "%"]
    assert rows["peak memory of that"].strip() == "200.0 MB"
