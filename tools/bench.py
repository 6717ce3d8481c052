"""Prefill, decoding, start and memory of models, beside llama.cpp and beside the machine's limits.

    tools/bench [MODEL ...] [--variant NAME=FLAGS]... [--threads 1,2] [--rounds N] [--json FILE]
    tools/bench --from-json FILE... [--markdown] [--svg FILE]

Every figure comes from a process of its own: `caldrix bench` for each variant of caldrix, and
tools/bench_peer.py under a Python with llama-cpp-python (`make peer`) for the peer, which times the
same steps by the same code. In a round all programs run one after another, a different one first
each time; ratios and parts of limits are taken within a round, because a shared machine changes its
speed by the minute. The record is written after every round. tools/bench_report.py shows it.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bench_report

from caldrix import __version__
from caldrix.cli.bench import PROMPT, START_TOKENS, measure_start
from caldrix.engine.measure import Others, Work
from caldrix.engine.threads import default_threads
from caldrix.errors import EngineError

ROOT = Path(__file__).resolve().parent.parent
PEER = bench_report.PEER
Round = dict[str, Any]


class Failed(Exception):
    """A program that could not be measured: one line."""


def counts(text: str) -> tuple[int, ...]:
    """`1,2`: whole numbers above 0."""
    found = tuple(int(part) for part in text.split(","))
    if min(found) < 1:
        raise ValueError
    return found


def variant(text: str) -> tuple[str, list[str]]:
    """`NAME=FLAGS`, or NAME alone for none."""
    name, _, flags = text.partition("=")
    if not name or name == PEER:
        raise ValueError
    return name, shlex.split(flags)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/bench", description="speeds beside llama.cpp")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="GGUF files; default: demo")
    parser.add_argument(
        "--variant",
        action="append",
        type=variant,
        metavar="NAME=FLAGS",
        help="flags of caldrix bench under a name; repeatable; default: caldrix=",
    )
    parser.add_argument("--threads", type=counts, metavar="LIST", help="default: 1 and all cores")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=counts, default=(128, 512), help="default: 128,512")
    parser.add_argument("--depths", type=counts, default=(32,), help="default: 32")
    parser.add_argument("--steps", type=int, default=32, help="tokens decoded at each depth")
    parser.add_argument(
        "--together",
        type=int,
        default=0,
        metavar="N",
        help="also decode N sequences together, on the most threads",
    )
    parser.add_argument("--peer", metavar="PYTHON", help="default: that of .venv-peer, if there")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--no-start", action="store_true", help="leave out whole programs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the record")
    parser.add_argument(
        "--from-json",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="show kept records instead of measuring",
    )
    parser.add_argument("--markdown", action="store_true", help="print tables for a page")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a chart")
    return parser.parse_args()  # fmt: skip


# --- one program, once ---------------------------------------------------------------------------


def run(command: list[str]) -> Any:
    """What a program prints as JSON, last; Failed with its last line of stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise Failed(done.stderr.strip().rpartition("\n")[2] or f"exit {done.returncode}")
    return json.loads(done.stdout)


def children_s() -> float:
    """Processor time of the programs that were measured."""
    times = os.times()
    return times.children_user + times.children_system


def listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def ours(model: str, threads: int, work: Work, flags: list[str]) -> tuple[Round, dict[str, Any]]:
    """A round of caldrix, and what its record says of the model."""
    command = [sys.executable, "-m", "caldrix", "bench", model, "--no-start", "--rounds", "1"]
    command += ["--json", "-", "--threads", str(threads), "--steps", str(work.n_new)]
    command += ["--lengths", listed(work.lengths), "--depths", listed(work.depths), *flags]
    record = run(command)
    (measured,) = record["runs"]
    (found,) = measured["rounds"]
    more = {"load_s": measured["load_s"], "peak_rss_bytes": record["peak_rss_bytes"]}
    return found | more, record["model"] | {"machine": record["machine"]}


def theirs(python: str, model: str, threads: int, work: Work, n_slots: int = 1) -> Round:
    script = str(ROOT / "tools" / "bench_peer.py")
    found: Round = run(
        [python, script, model, str(threads), json.dumps(asdict(work)), str(n_slots)]
    )
    return found


def together(work: Work) -> Work:
    """Only what several sequences need."""
    depth = min(work.depths)
    return Work((depth,), (depth,), work.n_new)


# --- rounds --------------------------------------------------------------------------------------


class Cell:
    """One model on one number of threads: its programs, and the rounds that they have run."""

    def __init__(self, options: argparse.Namespace, model: str, threads: int) -> None:
        self.options, self.model, self.threads = options, model, threads
        self.work = Work(options.lengths, options.depths, options.steps)
        self.together = options.together if threads == max(options.threads) else 0
        self.record: dict[str, Any] = {
            "model": Path(model).stem,
            "threads": threads,
            "together": self.together,
            "programs": {},
            "refused": {},
            "rounds": [],
        }

    def round(self, index: int) -> None:
        """Every program once; which one is first moves on by one each round."""
        names = [name for name, _ in self.options.variant] + [PEER] * bool(self.options.peer)
        names = [name for name in names if name not in self.record["refused"]]
        found: dict[str, Round] = {}
        turn = index % len(names) if names else 0
        for name in names[turn:] + names[:turn]:
            say(f"{self.record['model']}, {self.threads} thread(s), round {index + 1}: {name}")
            try:
                others = Others(children_s)
                found[name] = self.measure(name) | {"others": others.part()}
            except Failed as error:
                say(f"{name}: {error}")
                self.record["refused"][name] = str(error)
        if found:
            self.record["rounds"].append(found)

    def measure(self, name: str) -> Round:
        if name == PEER:
            return self.measure_peer()
        flags = dict(self.options.variant)[name]
        found, about = ours(self.model, self.threads, self.work, flags)
        if self.together:
            more = [*flags, "--parallel", str(self.together)]
            many, _ = ours(self.model, self.threads, together(self.work), more)
            found["together"] = many["together"]
            about["n_slots"] = self.together
        self.record["machine"] = about.pop("machine")
        self.record["programs"][name] = {"flags": flags, "model": about}
        return found

    def measure_peer(self) -> Round:
        python = self.options.peer
        found = theirs(python, self.model, self.threads, self.work)
        if self.together:
            many = theirs(python, self.model, self.threads, together(self.work), self.together)
            found["together"] = many["together"]
        self.record["programs"][PEER] = {"version": found.pop("version")}
        return found


def start_once(command: list[str]) -> dict[str, Any]:
    others = Others(children_s)
    return measure_start(command) | {"others": others.part()}


def start_rounds(options: argparse.Namespace, model: str) -> dict[str, Any]:
    """Whole programs from their start to the first byte of answer, alternating."""
    threads = str(max(options.threads))
    name, flags = options.variant[0]
    script = str(ROOT / "tools" / "bench_peer.py")
    run_it = [sys.executable, "-m", "caldrix", "run", model, "-p", PROMPT, "--max-tokens"]
    commands = {name: [*run_it, START_TOKENS, "--threads", threads, *flags]}
    if options.peer:
        commands[PEER] = [options.peer, script, "start", model, threads, PROMPT]
    found: dict[str, Any] = {"model": Path(model).stem, "threads": int(threads), "rounds": []}
    for index in range(options.rounds):
        say(f"{found['model']}, round {index + 1}: starts of whole programs")
        try:
            round_ = {name: start_once(command) for name, command in commands.items()}
        except EngineError as error:
            return found | {"rounds": [], "refused": str(error)}
        found["rounds"].append(round_)
    return found


def compare(options: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "format": bench_report.FORMAT,
        "caldrix": __version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command_line(sys.argv[1:]),
        "cells": [],
        "starts": [],
    }
    for model in options.models:
        for threads in options.threads:
            cell = Cell(options, model, threads)
            record["cells"].append(cell.record)
            for index in range(options.rounds):
                cell.round(index)
                save(record)
        if not options.no_start:
            record["starts"].append(start_rounds(options, model))
            save(record)
    return record


# --- the command ---------------------------------------------------------------------------------


def command_line(typed: list[str]) -> str:
    """The command for a page: without where things are on this machine."""
    kept, rest = ["tools/bench"], list(typed)
    while rest:
        argument = rest.pop(0)
        name, equals, _ = argument.partition("=")
        if name not in ("--peer", "--json", "--svg"):
            kept.append(Path(argument).name if Path(argument).exists() else argument)
        elif not equals:
            del rest[:1]
    return shlex.join(kept)


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def demo() -> str:
    """The demo's file, fetched where it is not here."""
    from caldrix.hub.fetch import fetch
    from caldrix.hub.resolve import parse_model

    return str(fetch(parse_model("demo"), say))


def complete(options: argparse.Namespace) -> None:
    """The defaults that need a look at the machine."""
    options.variant = options.variant or [("caldrix", [])]
    options.threads = options.threads or tuple(sorted({1, default_threads()}))
    options.models = [demo() if model == "demo" else model for model in options.models or ["demo"]]
    python = options.peer or str(ROOT / ".venv-peer" / "bin" / "python")
    if options.peer and not Path(python).exists():
        sys.exit(f"bench: --peer {python}: no such file")
    options.peer = python if Path(python).exists() and not options.no_peer else None
    if options.peer is None and not options.no_peer:
        say("no peer: `make peer` builds it; only caldrix is measured")


def main() -> None:
    options = arguments()
    if options.from_json:
        records = [bench_report.read(path) for path in options.from_json]
    else:
        complete(options)

        def save(record: dict[str, Any]) -> None:
            if options.json:
                options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf8")

        save({})  # refused now rather than after the first round
        records = [compare(options, save)]
    show = bench_report.markdown if options.markdown else bench_report.text
    print("\n".join(show(record) for record in records), end="")
    if options.svg:
        options.svg.write_text(bench_report.svg(records), encoding="utf8")


if __name__ == "__main__":
    main()
