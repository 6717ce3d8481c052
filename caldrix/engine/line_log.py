"""Lines appended to a file without waiting for the disk: the telemetry log.

Owns the thread that writes and what happens when it cannot: lines are lost and counted, a status
line says so once, and writing goes on as soon as there is room again. Knows nothing of what the
lines hold.
"""

import os
import threading
from queue import Full, Queue

from caldrix import log
from caldrix.errors import RefusedError, printable

_MAX_WAITING = 4096  # lines that a slow disk may lag behind


class LineLog:
    """Open from its making to `close`; any thread may write."""

    def __init__(self, path: str, name: str) -> None:
        """`name` is how messages call the file. Raises RefusedError when it cannot be written."""
        self._name = name
        try:
            # Not blocking: a pipe without a reader is refused, one that is full loses lines.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._file = os.open(path, flags, 0o666)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise RefusedError(f"{name} {printable(path)}: {reason.lower()}") from None
        self._waiting: Queue[bytes | None] = Queue(_MAX_WAITING)
        self._is_broken = False  # the last line was lost
        self._is_cut = False  # the file ends within a line
        self.n_lost = 0
        self._thread = threading.Thread(target=self._main, name="caldrix-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Takes a line without its end; never waits and never raises."""
        try:
            self._waiting.put_nowait(line.encode("utf8", "backslashreplace") + b"\n")
        except Full:
            self.n_lost += 1

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what waits, unless the disk takes longer; lines after this are lost."""
        try:
            self._waiting.put(None, timeout=timeout_s)
        except Full:
            return  # the thread ends with the program
        self._thread.join(timeout_s)

    # In the thread

    def _main(self) -> None:
        while (line := self._waiting.get()) is not None:
            try:
                self._append(line)
            except OSError as error:
                self.n_lost += 1
                self._complain(error)
            else:
                self._is_broken = False
        os.close(self._file)

    def _append(self, line: bytes) -> None:
        if self._is_cut:
            line = b"\n" + line
        while line:
            line = line[os.write(self._file, line) :]
            self._is_cut = bool(line)

    def _complain(self, error: OSError) -> None:
        if not self._is_broken:
            reason = (error.strerror or str(error)).lower()
            log.status(f"{self._name}: {reason}; records are lost until it can be written again")
        self._is_broken = True
