"""Prefill, decode, start-up and peak memory of one model, beside llama.cpp where it is installed.

    python tools/bench.py [MODEL] [--peer PYTHON] [--rounds N] [--threads N] [--json FILE]

Rounds alternate between the two programs, each in a process of its own, and ratios are taken within
a round: a shared machine changes speed by the minute, so only medians of ratios mean anything.
Every run prints a checksum of what it computed. The peer is a Python with llama-cpp-python (`make
peer`); without one only caldrix's own figures are printed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PREFILL, DECODE = (128, 512), 64
PROMPT = "What is the capital of France?"

OURS = """
import json, sys, time
from pathlib import Path
from caldrix.engine.load import LoadOptions, load_program
path, threads = sys.argv[1], int(sys.argv[2])
prefill, n = json.loads(sys.argv[3]), int(sys.argv[4])
program = load_program(Path(path), LoadOptions(threads=threads))
def run(ids, start):
    for at in range(0, len(ids), program.max_rows):
        part = ids[at:at + program.max_rows]
        places = list(range(start + at, start + at + len(part)))
        program.step(part, places, [0] * len(part), [len(part) - 1], None)
    return int(program.logits[0].argmax())
"""
PEER = """
import json, sys, time
import llama_cpp, numpy as np
path, threads = sys.argv[1], int(sys.argv[2])
prefill, n = json.loads(sys.argv[3]), int(sys.argv[4])
model = llama_cpp.Llama(path, n_ctx=2048, n_threads=threads, n_threads_batch=threads,
                        n_batch=512, n_ubatch=512, verbose=False)
def run(ids, start):
    model.n_tokens = start
    if start == 0:
        model.reset(); model._ctx.kv_cache_clear()
    model.eval(ids)
    logits = llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1)
    return int(np.ctypeslib.as_array(logits, (model.n_vocab(),)).argmax())
"""
MEASURE = """
out = {"prefill": {}}
run(list(range(100, 164)), 0)
for size in prefill:
    t = time.perf_counter(); last = run([100 + i % 997 for i in range(size)], 0)
    out["prefill"][str(size)] = size / (time.perf_counter() - t)
run([100 + i for i in range(64)], 0)
token, seen, at = 100, [], 64
t = time.perf_counter()
for _ in range(n):
    token = run([token], at); at += 1; seen.append(token)
out["decode"] = n / (time.perf_counter() - t)
out["checksum"] = sum(i * v for i, v in enumerate(seen, 1)) % 1000003
print(json.dumps(out))
"""
PEER_START = """
import sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=2048, n_threads=int(sys.argv[2]), verbose=False)
turn = [{"role": "user", "content": sys.argv[3]}]
for piece in model.create_chat_completion(turn, max_tokens=8, temperature=0, stream=True):
    text = piece["choices"][0]["delta"].get("content")
    if text:
        print(text, end="", flush=True)
"""


def speeds(python: str, code: str, model: str, threads: int) -> dict[str, object]:
    """One process: tokens a second in prefill by length, and in decode."""
    command = [python, "-c", code + MEASURE, model, str(threads), json.dumps(PREFILL), str(DECODE)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode:
        sys.exit(f"bench: {python} failed: {done.stderr.strip()[-400:]}")
    result: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def start_up(command: list[str]) -> dict[str, float]:
    """Seconds from the start of the process to its first byte of answer, and its peak RSS in MB."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    )
    assert process.stdout
    process.stdout.read(1)
    first = time.perf_counter() - started
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"bench: {command[0]} failed with exit {process.returncode}")
    return {"first_token_s": first, "peak_rss_mb": usage.ru_maxrss / 1000}


def measure(
    model: str, threads: int, peer: str | None, starts: bool
) -> dict[str, dict[str, object]]:
    """One round: ours, then the peer's; start-up, which needs a tokenizer, only if `starts`."""
    run = [sys.executable, "-m", "caldrix", "run", model, "-p", PROMPT, "--max-tokens", "8"]
    ours = speeds(sys.executable, OURS, model, threads)
    if starts:
        ours |= start_up([*run, "--threads", str(threads)])
    if peer is None:
        return {"caldrix": ours}
    theirs = speeds(peer, PEER, model, threads)
    if starts:
        theirs |= start_up([peer, "-c", PEER_START, model, str(threads), PROMPT])
    return {"caldrix": ours, "llama.cpp": theirs}


def flat(result: dict[str, object]) -> dict[str, float]:
    """Named figures of one program's round."""
    prefill = result["prefill"]
    assert isinstance(prefill, dict)
    figures = {f"prefill {size} t/s": float(v) for size, v in prefill.items()}
    for key, label in (
        ("decode", "decode t/s"),
        ("first_token_s", "first token s"),
        ("peak_rss_mb", "peak RSS MB"),
    ):
        if key in result:
            figures[label] = float(str(result[key]))
    return figures


def table(rounds: list[dict[str, dict[str, object]]]) -> str:
    """Medians, and the median of the ratios within rounds."""
    names = list(rounds[0])
    lines = [f"{'':<18}" + "".join(f"{name:>12}" for name in names)]
    if len(names) == 2:
        lines[0] += f"{'ratio':>10}"
    for label in flat(rounds[0][names[0]]):
        values = [[flat(r[name])[label] for r in rounds] for name in names]
        line = f"{label:<18}" + "".join(f"{statistics.median(v):>12.2f}" for v in values)
        if len(names) == 2:
            ratios = [a / b for a, b in zip(*values, strict=True)]
            line += f"{statistics.median(ratios):>9.2f}x"
        lines.append(line)
    sums = {name: sorted({str(r[name]["checksum"]) for r in rounds}) for name in names}
    return "\n".join([*lines, f"checksums {sums}"])


def default_model() -> str:
    """The demo's file, where `caldrix run demo` has put it."""
    from caldrix.hub.fetch import fetch
    from caldrix.hub.resolve import parse_model

    return str(fetch(parse_model("demo"), print))


def main() -> None:
    parser = argparse.ArgumentParser(description="prefill, decode, start-up and memory")
    parser.add_argument("model", nargs="?", help="a GGUF file or a directory (default: the demo)")
    parser.add_argument("--peer", help="a Python that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-start", action="store_true", help="for a model without a tokenizer")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    model = options.model or default_model()
    peer = options.peer or str(ROOT / ".venv-peer" / "bin" / "python")
    peer = peer if Path(peer).exists() else None
    starts = not options.no_start
    rounds = [measure(model, options.threads, peer, starts) for _ in range(options.rounds)]
    print(f"{Path(model).name}, {options.threads} thread(s), {options.rounds} round(s)")
    print(table(rounds))
    if options.json:
        Path(options.json).write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
