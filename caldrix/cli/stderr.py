"""Stderr that never waits, for as long as a server runs: a reader of it that has stopped reading
must not stop the replies.

Owns the thread that writes and what is lost when it cannot. What is written to `sys.stderr` is
handed to the thread in order, whoever writes: status lines, the access log, warnings of others.
"""

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TextIO, cast

MAX_WAITING = 4096  # pieces of text
CLOSE_S = 2.0  # what waits is written for so long at the end


class SteadyStderr:
    """What `sys.stderr` is meanwhile: as much of a text stream as those who write to it need."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._file = stream.fileno()
        self.encoding = stream.encoding
        self.errors = "backslashreplace"
        self._waiting: SimpleQueue[str | None] = SimpleQueue()  # may be put to by signal handlers
        self._n_lost = 0
        self._thread = threading.Thread(target=self._main, name="caldrix-stderr", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Takes text, or loses it where too much waits; never waits and never raises."""
        if self._waiting.qsize() >= MAX_WAITING:
            self._n_lost += 1
            return len(text)
        if self._n_lost:
            lost, self._n_lost = self._n_lost, 0
            self._waiting.put(f"caldrix: {lost} lines are lost: nobody read stderr\n")
        self._waiting.put(text)
        return len(text)

    def flush(self) -> None:
        """Nothing: the thread writes at once."""

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        """Writes what waits, unless nobody reads; the thread then ends with the program."""
        self._waiting.put(None)
        self._thread.join(CLOSE_S)

    # In the thread

    def _main(self) -> None:
        while (text := self._waiting.get()) is not None:
            data = text.encode(self.encoding, self.errors)
            while data:
                data = data[self._append(data) :]

    def _append(self, data: bytes) -> int:
        """How much of it is done with."""
        try:
            return os.write(self._file, data)
        except BlockingIOError:  # whoever started this wants it so; they share the descriptor
            select.select([], [self._file], [])  # woken by the reader, or by its end
            return 0
        except OSError:
            return len(data)  # a stderr that is gone is no reason to stop


@contextmanager
def steady_stderr() -> Iterator[None]:
    """Nothing that is written to `sys.stderr` waits for it inside the block."""
    stream = sys.stderr
    try:
        stream.flush()
        steady = SteadyStderr(stream)
    except (AttributeError, OSError, ValueError):  # none at all, or none of the system's
        yield
        return
    sys.stderr = cast(TextIO, steady)
    try:
        yield
    finally:
        sys.stderr = stream
        steady.close()
