"""stdout, where the answer goes, or the text that a command was asked for, and nothing else.

Owns how text reaches it: at once, whole characters, and on a terminal with the control characters
of the answer spelled out, so that a model cannot steer the terminal. Knows nothing of models. A
reader that has gone away raises BrokenPipeError, which ends the program quietly; any other failure
is said in one line.
"""

import sys
from typing import TextIO

from caldrix.errors import EngineError

_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


class Output:
    """`exact` leaves control characters as they are, as they always are in a file or a pipe."""

    def __init__(self, stream: TextIO | None = None, *, exact: bool = False) -> None:
        target = sys.stdout if stream is None else stream
        if target is None:
            raise EngineError("cannot write to stdout: it is closed")
        if hasattr(target, "reconfigure"):
            target.reconfigure(errors="replace")
        self._stream = target
        self._is_terminal = target.isatty()
        self._escapes = self._is_terminal and not exact
        self._column_zero = True

    def write(self, text: str) -> None:
        if not text:
            return
        self._column_zero = text.endswith("\n")
        self._put(text.translate(_CONTROLS) if self._escapes else text)

    def end_line(self, *, interrupted: bool = False) -> None:
        """Starts a new line unless the answer ended with one; a terminal shows ^C after it."""
        if not self._column_zero or (interrupted and self._is_terminal):
            self.write("\n")

    def _put(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise EngineError(f"cannot write to stdout: {error.strerror or error}") from None
