"""What tests use to look at a request at one moment: steps that go on one at a time, and a client
that reads a stream as it comes or leaves."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from served import Served

LIMIT_S = 20  # for what must come; only a failing test waits so long


def wait_until(holds: Callable[[], bool]) -> None:
    """Waits for something that no event tells of."""
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, "it did not come"


class Held:
    """The native steps of a served model: each waits in its thread until the test lets it go."""

    def __init__(self, served: Served) -> None:
        self._step = served.model.program.step
        self._begun = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self._is_open = False

    def step(self, *values: Any) -> Any:
        self._begun.release()
        if not self._is_open:
            assert self._go.acquire(timeout=LIMIT_S)
        return self._step(*values)

    def begun(self) -> None:
        """Waits until a step that was not waited for has begun, and waits to go on."""
        assert self._begun.acquire(timeout=LIMIT_S)

    def pass_one(self) -> None:
        """Lets the step that waits go on; the next one has begun when this returns."""
        self._go.release()
        self.begun()

    def end_one(self) -> None:
        """Lets the step that waits go on, as the last one."""
        self._go.release()

    def open(self) -> None:
        self._is_open = True
        self._go.release()


@contextmanager
def held_steps(served: Served) -> Iterator[Held]:
    """No step is held any more when the block ends."""
    held = Held(served)
    program = served.model.program
    program.step = held.step  # type: ignore[method-assign]
    try:
        yield held
    finally:
        held.open()
        program.step = held._step  # type: ignore[method-assign]


class Reader:
    """The client of one stream, or of a reply that it will not wait for."""

    def __init__(self, served: Served, path: str, **fields: Any) -> None:
        """Returns when the head of the stream is there."""
        port = served.server.port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        body = json.dumps({"model": served.model.name, **fields})
        self._connection.request("POST", path, body)
        if fields.get("stream"):
            self._response = self._connection.getresponse()
            assert self._response.status == 200

    def block(self) -> str:
        """The next event or comment."""
        line = self._response.readline().decode()
        assert self._response.readline() == b"\n"
        return line.removesuffix("\n")

    def event(self) -> Any:
        """The next event, comments left out."""
        while (block := self.block()).startswith(":"):
            pass
        data = block.removeprefix("data: ")
        return data if data == "[DONE]" else json.loads(data)

    def comment(self, wanted: str) -> None:
        """Reads up to a comment, which must come before any event."""
        while (block := self.block()) != f": {wanted}":
            assert block.startswith(":"), block

    def rest(self) -> list[Any]:
        """The events up to the last, then leaves."""
        events = [self.event()]
        while events[-1] != "[DONE]":
            events.append(self.event())
        self.leave()
        return events

    def answer(self) -> Any:
        """The whole reply, where it is not a stream."""
        with self._connection.getresponse() as response:
            body = json.load(response)
        self._connection.close()
        return body

    def leave(self) -> None:
        self._connection.close()
        if hasattr(self, "_response"):
            self._response.close()
