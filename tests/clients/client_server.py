"""A real `caldrix serve` as a process of its own, and what every client is held to.

Two models: `once` gives a known reply and ends, `endless` goes on for minutes, so that a client
can leave in the middle. Owns their numbers, which the tests compare with; knows no client.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import known_reply

ROOT = Path(__file__).resolve().parents[2]

ASK = "hi"
PROMPT_TOKENS = 20  # the template's 18 and one for each byte of ASK
REPLY = "Fox jumps:5€"  # no byte twice; its last character is three tokens
REPLY_TOKENS = len(REPLY.encode()) + 1  # and the end token
STOP, BEFORE_STOP = "jump", "Fox "
LINE = "go\n"  # a completion's prompt; the reply follows a line's end
MESSAGES = [{"role": "user", "content": ASK}]
TOO_LARGE = "x" * ((4 << 20) + 1)  # as a message: over the limit of 4 MiB of a body
MAX_CONTEXT = 100_000  # of `endless`: minutes of tokens
FREE_S = 0.5  # a slot is free again within this; a step takes about a millisecond


@dataclass(frozen=True)
class Served:
    """A running server."""

    name: str
    url: str

    @property
    def base(self) -> str:
        return f"{self.url}/v1"

    def get(self, path: str) -> object:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def is_busy(self) -> bool:
        slots = self.get("/slots")
        assert isinstance(slots, list)
        return any(slot["is_processing"] for slot in slots)

    def wait(self, busy: bool, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.is_busy() != busy:
            assert time.monotonic() < end, f"the slot is {'free' if busy else 'taken'} after all"
            time.sleep(0.005)

    def check_cancelled(self) -> None:
        """The client has gone: its slot is free at once and its record says why."""
        self.wait(busy=False, seconds=FREE_S)
        record = self.last_record()
        assert (record["outcome"], record["status"]) == ("cancelled", 499)
        assert record["completion_tokens"] < MAX_CONTEXT // 2

    def last_record(self) -> dict[str, object]:
        """Of the newest request that is over; written when its connection has been left."""
        end = time.monotonic() + 5
        while True:
            found = self.get("/debug/requests?limit=1")
            assert isinstance(found, dict)
            if found["requests"] and found["requests"][0]["state"] == "done":
                return found["requests"][0]
            assert time.monotonic() < end, "the newest request has not ended"
            time.sleep(0.005)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The one slot is in use, so that one more request is refused with 429."""
        body = {"model": self.name, "messages": MESSAGES, "stream": True}
        request = urllib.request.Request(
            f"{self.base}/chat/completions", json.dumps(body).encode(), method="POST"
        )
        self.wait(busy=False, seconds=5)
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.readline().startswith(b"data: ")
            yield
        self.wait(busy=False, seconds=5)


@contextmanager
def serve(directory: Path, *flags: str) -> Iterator[Served]:
    """The server's process, from its serving line to SIGTERM, which must end it with status 0."""
    command = [sys.executable, "-m", "caldrix", "serve", str(directory), "--port", "0", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if "caldrix: serving " in line:
                break
        else:
            raise AssertionError("".join(lines))
        stderr = process.stderr
        drain = threading.Thread(target=lambda: lines.extend(stderr), daemon=True)
        drain.start()
        try:
            yield Served(directory.name, lines[-1].split()[-1])
        finally:
            process.terminate()
            status = process.wait(60)
            drain.join(10)
    assert status == 0, "".join(lines)
    assert not [line for line in lines if "internal error" in line]


def write_once(parent: Path) -> Path:
    return known_reply.write_model(parent / "once", REPLY)


def write_endless(parent: Path) -> Path:
    directory = known_reply.write_model(parent / "endless", REPLY, repeats=True)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"max_position_embeddings": MAX_CONTEXT}))
    return directory
