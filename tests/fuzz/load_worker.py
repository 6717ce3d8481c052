"""Loads one damaged model after another and steps it, in a process of its own.

Run by test_fuzz_load.py. Arguments: a folder; then a kind, a seed, the first case and how many, or
`attacks` and the names of some. The seed picks the instruction-set row too. Before each case the
address space is capped at what is mapped plus the files' size and 64 MB, and each has a time limit.
A case passes when it is refused by one line that names the file, or when it loads and its scores
are sound: the same as the undamaged model's where the damage means nothing, else finite or said not
to be. Prints `case NAME` before each, so that a crash can be told, the failures, and what became of
all as JSON.
"""

import faulthandler
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import hostile
import numpy as np
from directory_damage import DIRECTORY_DAMAGE
from gguf_damage import GGUF_DAMAGE
from load_attacks import ATTACKS, DIRECTORY, LLAMA, QWEN2, QWEN3
from load_bases import Base, gguf_bases, safetensors_bases
from load_cases import Case, Expect, Odd
from stepper import step

from caldrix import _native, native
from caldrix.engine.load import LoadedModel, LoadOptions, load_model
from caldrix.engine.sequence import Request, check_request
from caldrix.errors import CaldrixError
from caldrix.text.chat_template import ChatTemplate

SANITIZED = "libasan" in Path("/proc/self/maps").read_text()
assert not SANITIZED or "address" in _native.__file__, f"a plain build: {_native.__file__}"
SECONDS = 30.0 if SANITIZED else 3.0
EXTRA_BYTES = 64_000_000
N_PROMPT, N_REPLY = 20, 3
TEXT = "hello <|im_end|> w\u00f6rld 1\n"


KINDS = {
    "gguf": (gguf_bases, GGUF_DAMAGE),
    "safetensors": (safetensors_bases, DIRECTORY_DAMAGE),
}


class Unsound(Exception):
    """A model that loaded and does what no model may."""


def use_text(loaded: LoadedModel) -> None:
    """Encodes and decodes. Ids that the model lacks are the engine's to refuse."""
    tokenizer = loaded.tokenizer
    found = [tokenizer.encode(TEXT), tokenizer.encode_text(TEXT)]
    if isinstance(loaded.chat_template, ChatTemplate):
        messages = [{"role": "user", "content": TEXT}]
        found.append(loaded.chat_template.encode(tokenizer, messages))
    for ids in found:
        tokenizer.decode(ids, False)
        if ids:
            check_request(Request(tuple(ids)), 1 << 20, loaded.program.vocab_size)


def use_model(loaded: LoadedModel) -> bytes:
    """The bits of the scores of a prompt's last row and of the reply's; checks the picks."""
    program = loaded.program
    n = min(N_PROMPT, program.context - 1) or 1
    ids = [(7 * i + 3) % program.vocab_size for i in range(n)]
    rows = [(token, i, 0) for i, token in enumerate(ids)]
    while len(rows) > program.max_rows:
        step(program, rows[: program.max_rows], [])
        rows = rows[program.max_rows :]
    digest, at = b"", n - 1
    for _ in range(N_REPLY):
        tokens, positions, slots = ([row[i] for row in rows] for i in range(3))
        (pick,) = program.step(tokens, positions, slots, [len(rows) - 1], [native.Sampling()])
        logits = program.logits[0]
        digest += logits.tobytes()
        if pick.finite != bool(np.isfinite(logits).all()):
            raise Unsound(f"a pick said to be finite={pick.finite}")
        if pick.finite and pick.token != int(logits.argmax()):
            raise Unsound(f"picked {pick.token}, not the first of the best")
        at += 1
        if not pick.finite or at >= program.context:
            break
        rows = [(pick.token, at, 0)]
    return digest


def outcome(path: Path, row: str) -> tuple[str, bytes]:
    """How a model fares: `refused: ...` and nothing, or `loaded` and the bits of its scores."""
    options = LoadOptions(threads=1, cpu_isa=row)  # more threads take address space
    try:
        loaded = load_model(path, options, lambda line: None)
    except CaldrixError as error:
        return f"refused: {error}", b""
    try:
        digest = use_model(loaded)
        try:
            use_text(loaded)
        except CaldrixError as error:
            check_message(str(error), path, "chat template: ", "the prompt holds token")
            return "loaded, text refused", digest
        return "loaded", digest
    finally:
        loaded.program.close()


def check_message(message: str, path: Path, *things: str) -> None:
    """One plain line that names the file, or one of `things`."""
    names = {path.name, path.parent.name, *things}
    if not message.isprintable() or len(message) > 1000:
        raise Unsound(f"no plain line: {message!r}")
    if not any(name in message for name in names):
        raise Unsound(f"names no file: {message!r}")


def judge(case: Case, path: Path, row: str, good: bytes) -> str:
    """What became of the case; raises for what may not be."""
    result, digest = outcome(path, row)
    if result.startswith("refused"):
        check_message(result, path)
        if case.expect is Expect.SAME:
            raise Unsound(result)
        return "refused"
    if case.expect is Expect.REFUSED:
        raise Unsound("loaded, where it had to be refused")
    if case.expect is Expect.SAME and digest != good:
        raise Unsound("other scores, although nothing that matters was changed")
    if digest == good:
        return "same"
    return "other"


class Runner:
    """Writes cases into a folder, loads and judges them, counts what became of them."""

    def __init__(self, bases: list[Base], folder: Path, row: str) -> None:
        self.bases, self.folder, self.row = bases, folder, row
        self.good: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()
        self.n_failures = 0
        for base in bases:
            directory = self.write("good-" + base.name, Case(base.files))
            result, digest = outcome(directory / base.model, row)
            assert result == "loaded", result
            assert np.isfinite(np.frombuffer(digest, np.float32)).all()
            self.good[base.name] = digest

    def write(self, name: str, case: Case) -> Path:
        directory = self.folder / name
        directory.mkdir()
        for path, raw in case.files.items():
            (directory / path).write_bytes(raw)
        for path, kind in case.odd.items():
            put_odd(directory / path, kind)
        return directory

    def run(self, name: str, base: Base, case: Case) -> None:
        """`name` is that of the case's directory, which a refusal has to name."""
        directory = self.write(name, case)
        cap_memory(sum(map(len, case.files.values())) + EXTRA_BYTES)
        print(f"case {name}", flush=True)
        faulthandler.dump_traceback_later(2 * SECONDS, exit=True, file=sys.__stdout__)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            with quiet_stderr() as written:
                became = judge(case, directory / base.model, self.row, self.good[base.name])
            if written:
                raise Unsound(f"on stderr: {written[0]!r}")
            self.counts[became] += 1
        except BaseException as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.n_failures += 1
            print(f"FAILED {name} ({base.name}, {case.note[:200]}): {told(error)}", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(directory)


def put_odd(path: Path, kind: Odd) -> None:
    match kind:
        case Odd.DIRECTORY:
            path.mkdir()
        case Odd.FIFO:
            os.mkfifo(path)
        case Odd.LOOP:
            path.symlink_to(path)
        case Odd.DANGLING:
            path.symlink_to(path.with_name("nothing"))
        case Odd.DEVICE:
            path.symlink_to("/dev/zero")


@contextmanager
def quiet_stderr() -> Iterator[list[str]]:
    """Takes what is written to stderr, by C and Rust too, but for our own status lines. Not under a
    sanitizer, whose findings go there."""
    written: list[str] = []
    if SANITIZED:
        yield written
        return
    kept = os.dup(2)
    with tempfile.TemporaryFile() as target:
        os.dup2(target.fileno(), 2)
        try:
            yield written
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            target.seek(0)
            text = target.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if not line.startswith("caldrix: ")]
    written += ["\n".join(lines)] if lines else []


def told(error: BaseException) -> str:
    """An error and where in caldrix it came from."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/caldrix/" in code.co_filename:
            where = f" at {code.co_filename.rpartition('/caldrix/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{where}"


def cap_memory(n_bytes: int) -> None:
    """Caps the address space at what is mapped now plus `n_bytes`; a sanitizer needs its own."""
    if not SANITIZED:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + n_bytes, hard))


def run_drawn(kind: str, seed: str, first: int, count: int, folder: Path) -> Runner:
    rows = native.rows()
    bases, damage = KINDS[kind]
    runner = Runner(bases(), folder, rows[int(seed) % len(rows)])
    for number in range(first, first + count):
        name = f"{kind}-{seed}-{number}"
        rng = random.Random(name)
        base, mutation = rng.choice(runner.bases), rng.choice(damage)
        case = mutation(rng, base)
        runner.run(name, base, replace(case, note=f"{mutation.__name__}, {case.note}"))
    return runner


def run_attacks(names: list[str], folder: Path) -> Runner:
    runner = Runner([LLAMA, QWEN3, QWEN2, DIRECTORY], folder, native.rows()[0])
    for name in names or ATTACKS:
        cap_memory(1 << 40)
        runner.run(name, ATTACKS[name].base, ATTACKS[name].make())
    return runner


def main(folder: str, kind: str, *rest: str) -> int:
    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, hostile.stop)
    if kind == "attacks":
        runner = run_attacks([*rest], Path(folder))
    else:
        seed, first, count = rest
        runner = run_drawn(kind, seed, int(first), int(count), Path(folder))
    print(json.dumps(runner.counts))
    return 1 if runner.n_failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
