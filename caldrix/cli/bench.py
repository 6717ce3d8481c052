"""`caldrix bench MODEL`: measures a model beside the limits of the machine, in one run.

Owns the order of a run and its record, the JSON that --json writes: whole programs first, from
their start to the first token, then for one thread and for all of them the load and the rounds. In
each round the limits are measured right after the speeds that are judged by them. What is timed is
engine/measure.py's and engine/limits.py's; the table is cli/bench_table.py's.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caldrix import log
from caldrix.cli.parse import CommandLine, parse, typed_flags
from caldrix.errors import EngineError, UsageError, printable

if TYPE_CHECKING:
    from caldrix.compile.program import Program
    from caldrix.engine.limits import Limits
    from caldrix.engine.load import LoadOptions
    from caldrix.engine.measure import Work

FORMAT = 1  # of the record; a reader that meets another refuses it
PROMPT = "What is the capital of France?"
START_TOKENS = "8"


def main(arguments: Sequence[str]) -> int:
    from caldrix.cli import prepare, rules
    from caldrix.cli.bench_table import table
    from caldrix.cli.output import Output

    line = parse("bench", arguments)
    lane = rules.check(line)
    target = line["json"]
    check_target(target)
    output = Output(exact=True)
    path, options = prepare.find(line, lane)
    starts = [] if line["no_start"] else measure_starts(line, arguments)
    record = measure(line, path, options) | {"start": starts, "flags": list(arguments[1:])}
    text = json.dumps(record, indent=1) + "\n"
    output.write(text if target == "-" else table(record))
    if target not in (None, "-"):
        write(target, text)
    return 0


def check_target(target: str | None) -> None:
    """Before minutes of measuring: the file of --json can be written."""
    if target not in (None, "-"):
        write(target, "")


def write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"--json {printable(path)[1:-1]}: {reason}") from None


# --- whole programs ------------------------------------------------------------------------------


def measure_starts(line: CommandLine, arguments: Sequence[str]) -> list[dict[str, float]]:
    """`caldrix run` with the flags that it shares with this command, once a round. Before anything
    large is loaded here: a process starts with its parent's peak of memory."""
    shared = [
        flag.name if text is None else f"{flag.name}={text}"
        for flag, _, text in typed_flags("bench", arguments[1:])
        if "run" in flag.commands
    ]
    command = [sys.executable, "-m", "caldrix", "run", line.model, f"--prompt={PROMPT}"]
    command += ["--max-tokens", START_TOKENS, *shared]
    log.status(f"measuring {line['rounds']} start(s) of a whole program")
    return [measure_start(command) for _ in range(line["rounds"])]


def measure_start(command: Sequence[str]) -> dict[str, float]:
    """Seconds from the start of the process to its first byte of answer, and its peak memory."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - began
        process.stdout.read()
        said = process.stderr.read().decode("utf8", "replace").strip()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not first:
        reason = said.rpartition("\n")[2].removeprefix("caldrix: ") or "it answered nothing"
        raise EngineError(f"caldrix run cannot start: {reason}; --no-start leaves it out")
    return {"first_token_s": seconds, "peak_rss_bytes": rss_bytes(usage.ru_maxrss)}


def rss_bytes(ru_maxrss: int) -> int:
    """The system's unit is the kibibyte, on macOS the byte."""
    return ru_maxrss if sys.platform == "darwin" else ru_maxrss * 1024


# --- a loaded model ------------------------------------------------------------------------------


def measure(line: CommandLine, path: Path, options: "LoadOptions") -> dict[str, Any]:
    """The record but for the starts."""
    from caldrix import __version__
    from caldrix.engine.limits import Limits
    from caldrix.engine.measure import Others, Work
    from caldrix.engine.threads import default_threads

    work = Work(line["lengths"], line["depths"], line["steps"])
    options = replace(options, max_out=options.n_slots)
    counts = [line["threads"]] if line["threads"] else sorted({1, default_threads()})
    runs: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    limits: Limits | None = None
    model: dict[str, Any] = {}
    peak = 0
    for threads in counts:
        program, load_s = open_program(path, replace(options, threads=threads), work)
        try:
            model = describe(program, options.name or path.name)
            rounds = []
            for index in range(line["rounds"]):
                log.status(f"{threads} thread(s), round {index + 1} of {line['rounds']}")
                others = Others()
                speeds = speeds_of(program, work)
                peak = peak or own_peak()
                limits = limits or Limits()
                found = {"limits": limits_of(limits, program), "others": others.part()}
                rounds.append(speeds | found)
        finally:
            program.close()
        runs.append({"threads": threads, "load_s": load_s, "rounds": rounds})
    assert limits is not None
    return {
        "format": FORMAT,
        "caldrix": __version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(limits.n_bytes),
        "model": model,
        "work": asdict(work),
        "peak_rss_bytes": peak,
        "runs": runs,
    }


def open_program(path: Path, options: "LoadOptions", work: "Work") -> "tuple[Program, float]":
    from caldrix.engine.load import load_program

    began = time.perf_counter()
    program = load_program(path, options)
    seconds = time.perf_counter() - began
    if work.context > program.context:
        program.close()
        raise UsageError(
            f"--lengths, --depths and --steps take {work.context} tokens of context, which has"
            f" {program.context}: use less of them, or --ctx where the model allows more"
        )
    return program, seconds


def speeds_of(program: "Program", work: "Work") -> dict[str, Any]:
    from caldrix.engine.measure import ProgramSteps, measure_speeds

    speeds = measure_speeds(ProgramSteps(program), work)
    return {
        "prefill": {str(length): speed for length, speed in speeds.prefill.items()},
        "decode": {str(depth): speed for depth, speed in sorted(speeds.decode.items())},
        "together": speeds.together,
        "checksum": f"{speeds.checksum:016x}",
    }


def limits_of(limits: "Limits", program: "Program") -> dict[str, Any]:
    found = limits.measure(program.options.cpu_isa, program.options.threads)
    return {
        name: {"per_s": limit.per_second, "checksum": f"{limit.checksum:016x}"}
        for name, limit in found.items()
    }


def describe(program: "Program", name: str) -> dict[str, Any]:
    from caldrix.engine.limits import cost_of

    options, cost = program.options, cost_of(program)
    return {
        "name": name,
        "dtype": options.dtype,
        "row": options.cpu_isa,
        "activations": getattr(options, "activations", "f32"),
        "context": program.context,
        "n_slots": program.n_slots,
        "file_bytes": program.sizes.files,
        **asdict(cost),
    }


def own_peak() -> int:
    """Peak memory of this process so far: before the limits' data is made."""
    import resource

    return rss_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def machine(buffer_bytes: int) -> dict[str, Any]:
    import platform

    from caldrix.cgroups import read
    from caldrix.compile.memory import memory_limit

    names = [
        text.partition(":")[2].strip()
        for text in read(Path("/proc/cpuinfo")).splitlines()
        if text.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "memory_bytes": memory_limit(),
        "read_buffer_bytes": buffer_bytes,
    }
