"""tools/bench: what it runs, in which order, and the record as tables and as a chart."""

import argparse
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import bench as bench_tool
import bench_report
import pytest
import sync_docs
import tiny
from bench_report import PEER

from caldrix.engine.measure import Work

ROOT = Path(__file__).resolve().parent.parent
MODEL = {
    "name": "m", "dtype": "f32", "row": "r", "n_slots": 4,
    "weight_bytes": 10**9, "row_flops": 10**9, "out_flops": 0,
}  # fmt: skip


def round_of(scale: float, *, limits: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "prefill": {"128": 50 * scale},
        "decode": {"32": 10 * scale},
        "together": 20 * scale,
        "checksum": "ab",
        "peak_rss_bytes": 3e8 * scale,
        "load_s": 0.5,
        "others": 0.25,
    }
    if limits:
        peaks = {"read": 20e9, "fma": 100e9, "int8": 200e9}
        found["limits"] = {n: {"per_s": v, "checksum": "cd"} for n, v in peaks.items()}
    return found


def record(**changes: Any) -> dict[str, Any]:
    """Two variants beside the peer: `raw` 1.5, 2 and 1 times as fast, `slow` half as fast."""
    rounds = [
        {
            "raw": round_of(ours, limits=True),
            PEER: round_of(theirs, limits=False),
            "slow": round_of(theirs / 2, limits=True),
        }
        for ours, theirs in ((1.5, 1.0), (1.0, 0.5), (2.0, 2.0))
    ]
    cell = {
        "model": "a<b", "threads": 2, "together": 4, "refused": {"planes": "no <planes> here"},
        "programs": {
            "raw": {"flags": [], "model": MODEL},
            "slow": {"flags": ["--x"], "model": MODEL},
            PEER: {"version": "llama-cpp-python 1"},
        },
        "machine": {
            "cpu": "C", "cpus": 2, "system": "Linux", "memory_bytes": 10**9, "read_buffer_bytes": 1,
        },
        "rounds": rounds,
    }  # fmt: skip
    start = {
        "model": "a<b", "threads": 2,
        "rounds": [
            {n: dict(first_token_s=s, peak_rss_bytes=2e8, others=None) for n, s in pair.items()}
            for pair in ({"raw": 0.4, PEER: 0.5}, {"raw": 0.3, PEER: 0.6})
        ],
    }  # fmt: skip
    return {
        "format": bench_report.FORMAT, "caldrix": "0", "date": "2026-12-07T00:00:00Z",
        "command": "tools/bench m", "cells": [cell], "starts": [start],
    } | changes  # fmt: skip


def columns(label: str) -> dict[str, bench_report.Column]:
    made = [row for _, _, _, found in bench_report.sections(record()) for row in found]
    return next(row for row in made if row.label == label).columns


# --- figures -------------------------------------------------------------------------------------


def test_a_ratio_is_the_median_of_ratios_within_rounds() -> None:
    """Of 1.5, 2 and 1; the ratio of the medians would be 1.5 as well, so a part says which."""
    raw, peer = columns("decode after 32")["raw"], columns("decode after 32")[PEER]
    assert raw.value == 15
    assert raw.ratio == 1.5
    assert raw.part == pytest.approx(0.75)  # 1 GB at 15 a second of 20 GB/s
    assert peer.ratio is None
    assert peer.part == pytest.approx(0.5)
    assert columns("decode after 32")["slow"].ratio == 0.5
    assert columns("decode 4 together")["raw"].part == pytest.approx(30 / 4 / 20)
    assert columns("prompt of 128")[PEER].part == pytest.approx(0.5)
    starts = columns("start to first token")["raw"]
    assert starts.value == pytest.approx(0.35)
    assert starts.ratio == pytest.approx((0.4 / 0.5 + 0.3 / 0.6) / 2)


def test_the_peer_is_judged_by_the_weights_of_the_file() -> None:
    """Whatever the first variant reads: a variant that reads half as much changes nothing of it."""
    packed = record()
    half = {"weight_bytes": 5 * 10**8, "activations": "int8"}
    packed["cells"][0]["programs"]["raw"]["model"] = MODEL | half
    made = {row.label: row.columns for row in bench_report.rows(packed["cells"][0])}
    assert made["decode after 32"]["raw"].part == pytest.approx(0.375)
    assert made["decode after 32"][PEER].part == pytest.approx(0.5)
    assert made["prompt of 128"]["raw"].part == pytest.approx(0.375)  # of the int8 peak
    assert made["prompt of 128"][PEER].part == pytest.approx(0.5)


def test_what_is_less_good_than_the_peer_is_named() -> None:
    said = bench_report.slower(record())
    assert "a<b, 2 threads, decode after 32: slow 0.50" in said
    assert not any(": raw 1" in line and "memory" not in line for line in said)
    assert "a<b, 2 threads, peak memory: raw 1.50" in said  # more memory is less good
    assert not any("start to first token" in line for line in said)


def test_rounds_that_were_cut_short_are_shown_as_far_as_they_went() -> None:
    short = record()
    del short["cells"][0]["rounds"][2][PEER]
    short["cells"].append(short["cells"][0] | {"rounds": []})
    text = bench_report.text(short)
    assert "1.75x" in text  # of 1.5 and 2


def test_a_busy_machine_is_warned_of() -> None:
    quiet = record()
    for round_ in quiet["cells"][0]["rounds"]:
        for measured in round_.values():
            measured["others"] = 0.04
    for show in (bench_report.text, bench_report.markdown):
        assert "Other work took up to 25 % of the processors" in show(record())
        assert "Other work took" not in show(quiet)


# --- text, markdown, chart -----------------------------------------------------------------------


def test_the_plain_table() -> None:
    lines = bench_report.text(record()).splitlines()
    assert "a<b, 2 threads" in lines
    assert any("memory read 20.0 GB/s" in x and "other work 25 % of" in x for x in lines)
    row = next(line for line in lines if line.startswith("decode after 32, t/s"))
    assert row.split()[4:] == [
        "10.0",
        "50",
        "%",
        "15.0",
        "1.50x",
        "75",
        "%",
        "5.00",
        "0.50x",
        "25",
        "%",
    ]
    assert lines[-1] == "refused: a<b, 2 threads: planes: no <planes> here"


def test_the_markdown_table() -> None:
    text = bench_report.markdown(record())
    assert text.startswith("`tools/bench m`\n\n2026-12-07, caldrix 0, llama-cpp-python 1; C, 2 ")
    assert (
        "| decode after 32, t/s | 10.0 | 50 % | 15.0 | 1.50 | 75 % | 5.00 | 0.50 | 25 % |" in text
    )
    assert "| start to first token, s | 0.55 |  | 0.35 | 0.65 |  |" in text
    for table in text.split("\n\n"):
        if table.startswith("|"):
            assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "- a<b, 2 threads, decode after 32: slow 0.50" in text
    assert "- a<b, 2 threads: planes: no <planes> here" in text


def test_a_run_that_is_never_less_good_says_so() -> None:
    best = record(starts=[])
    best["cells"][0]["rounds"] = [
        {"raw": round_of(0.9, limits=True), PEER: round_of(0.9, limits=False)}
    ]
    assert "Nothing in this run is less good than llama.cpp." in bench_report.markdown(best)


def test_the_chart_is_a_drawing_with_a_bar_for_each_ratio() -> None:
    root = ElementTree.fromstring(bench_report.svg([record()]))
    name = "{http://www.w3.org/2000/svg}"
    bars = [x for x in root.iter(f"{name}rect") if x.get("class") != "page"]
    assert len(bars) == 6  # prompt, decode, together; raw and slow
    texts = ["".join(x.itertext()) for x in root.iter(f"{name}text")]
    assert "a<b, 2 threads" in texts
    assert texts.count("1.50") == 3
    wide = {bar.get("class"): float(str(bar.get("width"))) for bar in bars}
    assert wide["bar"] == pytest.approx(3 * wide["bar1"], rel=0.01)
    right = max(float(str(b.get("x"))) + float(str(b.get("width"))) for b in bars)
    assert right + 40 <= float(str(root.get("width")))
    assert "prefers-color-scheme: dark" in "".join(root.itertext())


def test_without_a_peer_the_chart_shows_parts_of_limits() -> None:
    alone = record(starts=[])
    del alone["cells"][0]["programs"][PEER]
    for round_ in alone["cells"][0]["rounds"]:
        del round_[PEER]
    text = bench_report.svg([alone])
    assert "speed as a part of its limit" in text
    assert ">0.75<" in text
    assert "15.0" in bench_report.text(alone)
    assert PEER not in bench_report.text(alone)
    assert PEER not in bench_report.markdown(alone)


def test_what_is_no_record_ends_in_one_line(tmp_path: Path) -> None:
    for text, words in (
        ("x", "not a record"),
        ("[]", "not a record"),
        ('{"format": 9}', "format 9"),
    ):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(SystemExit, match=words):
            bench_report.read(tmp_path / "r.json")
    with pytest.raises(SystemExit, match="not a record"):
        bench_report.read(tmp_path / "none")


# --- the page ------------------------------------------------------------------------------------


def test_the_page_and_its_charts_are_those_of_the_records() -> None:
    assert bench_report.kept()
    assert sync_docs.main(["--check"]) == 0
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf8")
    for path, chart in bench_report.charts().items():
        assert path.read_text(encoding="utf8") == chart()
        assert f"(benchmarks/{path.name})" in page


# --- what is run ---------------------------------------------------------------------------------


def options(**changes: Any) -> argparse.Namespace:
    values: dict[str, Any] = {
        "models": ["x/m.gguf"], "variant": [("raw", []), ("fast", ["--fast"])], "threads": (1, 2),
        "rounds": 2, "lengths": (8,), "depths": (4, 9), "steps": 3, "together": 0,
        "peer": "python", "no_start": True,
    }  # fmt: skip
    return argparse.Namespace(**values | changes)


def test_programs_take_turns_and_each_round_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def ours(model: str, threads: int, work: Work, flags: list[str]) -> tuple[Any, Any]:
        ran.append(f"{threads} {' '.join(flags)}")
        return round_of(1.0, limits=True), dict(MODEL, machine={"cpu": "C"})

    def theirs(python: str, model: str, threads: int, work: Work, n_slots: int = 1) -> Any:
        ran.append(f"{threads} {python}")
        return round_of(1.0, limits=False) | {"version": "v"}

    monkeypatch.setattr(bench_tool, "ours", ours)
    monkeypatch.setattr(bench_tool, "theirs", theirs)
    saved: list[str] = []
    made = bench_tool.compare(options(), lambda r: saved.append(json.dumps(r)))
    first = ["", "--fast", "python"]
    assert ran == [f"{n} {what}" for n in (1, 2) for what in first + first[1:] + first[:1]]
    assert len(saved) == 4
    assert [len(cell["rounds"]) for cell in made["cells"]] == [2, 2]
    assert bench_report.names_of(made["cells"][0]) == [PEER, "raw", "fast"]
    assert bench_report.text(made)


def test_sequences_together_are_measured_on_the_most_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, Work, list[str]]] = []

    def ours(model: str, threads: int, work: Work, flags: list[str]) -> tuple[Any, Any]:
        asked.append((threads, work, flags))
        found = round_of(float(len(flags)), limits=True)
        return found, dict(MODEL, machine={}, n_slots=1)

    monkeypatch.setattr(bench_tool, "ours", ours)
    chosen = options(variant=[("raw", ["-x"])], peer=None, together=8, rounds=1)
    made = bench_tool.compare(chosen, lambda r: None)
    whole, part = Work((8,), (4, 9), 3), Work((4,), (4,), 3)
    more = ["-x", "--parallel", "8"]
    assert asked == [(1, whole, ["-x"]), (2, whole, ["-x"]), (2, part, more)]
    assert made["cells"][1]["rounds"][0]["raw"]["together"] == 60.0
    assert made["cells"][1]["programs"]["raw"]["model"]["n_slots"] == 8


def test_a_variant_that_is_refused_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[list[str]] = []

    def ours(model: str, threads: int, work: Work, flags: list[str]) -> tuple[Any, Any]:
        tries.append(flags)
        if flags:
            raise bench_tool.Failed("caldrix: --fast: no")
        return round_of(1.0, limits=True), dict(MODEL, machine={})

    monkeypatch.setattr(bench_tool, "ours", ours)
    made = bench_tool.compare(options(peer=None, threads=(1,)), lambda r: None)
    assert tries.count(["--fast"]) == 1
    assert made["cells"][0]["refused"] == {"fast": "caldrix: --fast: no"}
    assert [list(round_) for round_ in made["cells"][0]["rounds"]] == [["raw"], ["raw"]]


def test_a_real_round_of_caldrix(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.MODELS[0])
    found, about = bench_tool.ours(str(model), 1, Work((4,), (3,), 2), ["--dtype", "f32"])
    assert found["decode"]["3"] > 0
    assert found["limits"]["read"]["per_s"] > 0
    assert about["dtype"] == "f32"
    with pytest.raises(bench_tool.Failed, match="--dtype 'f64'"):
        bench_tool.ours(str(model), 1, Work((4,), (3,), 2), ["--dtype", "f64"])


@pytest.mark.model
def test_a_real_round_of_the_peer(demo_gguf: Path) -> None:
    """Where `make peer` has built it: its figures, and by the same steps the same tokens."""
    python = ROOT / ".venv-peer" / "bin" / "python"
    if not python.exists():
        pytest.skip("no llama-cpp-python: `make peer` builds it")
    work = Work((16,), (8,), 4)
    found = bench_tool.theirs(str(python), str(demo_gguf), 1, work, 2)
    assert found["decode"]["8"] > 0
    assert found["together"] > 0
    assert found["version"].startswith("llama-cpp-python ")
    alone = bench_tool.theirs(str(python), str(demo_gguf), 1, work)
    assert alone["checksum"] == bench_tool.ours(str(demo_gguf), 1, work, [])[0]["checksum"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--variant", "=x"], "--variant"),
        (["--variant", PEER], "--variant"),
        (["--threads", "0"], "--threads"),
        (["--lengths", "8,x"], "--lengths"),
        (["--peer", "/nonexistent"], "--peer /nonexistent: no such file"),
        (["--from-json", "/nonexistent"], "/nonexistent: not a record"),
    ],
)
def test_a_command_line_that_is_refused(typed: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "bench.py"), *typed, "--rounds", "1"],
        capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode != 0
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_kept_record_is_shown_again(tmp_path: Path) -> None:
    path, chart = tmp_path / "r.json", tmp_path / "r.svg"
    path.write_text(json.dumps(record()))
    script = str(ROOT / "tools" / "bench.py")
    done = subprocess.run(
        [sys.executable, script, "--from-json", str(path), "--svg", str(chart)],
        capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, check=True,
    )  # fmt: skip
    assert done.stdout == bench_report.text(record())
    assert chart.read_text() == bench_report.svg([record()])


def test_the_command_on_a_page_has_no_place_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    typed = [str(tmp_path / "m.gguf"), "--variant", "a=--ctx 9", "--json", "/x/y", "--peer=/z"]
    assert bench_tool.command_line([*typed, "--rounds", "2"]) == (
        "tools/bench m.gguf --variant 'a=--ctx 9' --rounds 2"
    )
