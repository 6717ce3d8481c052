"""`caldrix serve` in a process that measures its own event loop; started by bench_http.py.

    python tools/watched_server.py FILE MODEL [serve's flags]

A stall is the time from the loop's waking to its next poll: while it lasts nobody is served. On
SIGUSR1 the figures so far go to FILE as one JSON object and start anew. The selector of the loop,
which runs on a thread of its own, is replaced; everything else is the command as users run it.
"""

import asyncio
import gc
import json
import os
import selectors
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
KEPT = 5  # the longest stalls


class WatchedSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Times what happens between two polls, in all and on the processor."""

    woken = cpu = 0.0
    n_turns = 0
    stalls: list[tuple[float, float]]  # milliseconds: in all, on the processor

    def __init__(self) -> None:
        super().__init__()
        self.stalls = []
        watched.append(self)

    def select(self, timeout: float | None = None) -> Any:
        if self.woken:
            stall = (time.perf_counter() - self.woken) * 1e3, (time.thread_time() - self.cpu) * 1e3
            self.n_turns += 1
            if len(self.stalls) < KEPT or stall > self.stalls[-1]:
                self.stalls = sorted([*self.stalls, stall], reverse=True)[:KEPT]
        ready = super().select(timeout)
        self.woken, self.cpu = time.perf_counter(), time.thread_time()
        return ready


watched: list[WatchedSelector] = []
loops: list[asyncio.AbstractEventLoop] = []
new_event_loop = asyncio.new_event_loop
collected: dict[str, float] = {"since": 0.0, "ms": 0.0}  # the longest garbage collection


def noted_loop() -> asyncio.AbstractEventLoop:
    loops.append(new_event_loop())
    return loops[-1]


def time_collection(phase: str, info: dict[str, int]) -> None:
    now = time.perf_counter()
    if phase == "start":
        collected["since"] = now
    else:
        collected["ms"] = max(collected["ms"], (now - collected["since"]) * 1e3)


def figures() -> dict[str, object]:
    """What the loop has seen since the last time, and what is alive now."""
    loop = watched[-1]
    out = {
        "collection_ms": round(collected["ms"], 2),
        "n_turns": loop.n_turns,
        "stalls_ms": [[round(whole, 2), round(cpu, 2)] for whole, cpu in loop.stalls],
        "n_tasks": len(asyncio.all_tasks(loops[-1])),
        "n_descriptors": len(os.listdir("/proc/self/fd")) - 1,  # less the one of this listing
    }
    collected["ms"] = 0.0
    loop.n_turns, loop.stalls, loop.woken = 0, [], 0.0
    return out


def main() -> int:
    file = Path(sys.argv[1])

    def tell(number: int, frame: FrameType | None) -> None:
        part = file.with_suffix(".part")
        part.write_text(json.dumps(figures()))
        part.rename(file)

    signal.signal(signal.SIGUSR1, tell)
    gc.callbacks.append(time_collection)
    selectors.DefaultSelector = WatchedSelector  # type: ignore[misc]
    asyncio.new_event_loop = noted_loop
    from caldrix.cli.main import main as command

    sys.argv[1:] = ["serve", *sys.argv[2:]]
    return command()


if __name__ == "__main__":
    sys.exit(main())
