"""One message at a time from whoever types: a terminal with line editing, or a pipe.

Owns the prompt, the line editor's set-up and the decoding of bytes. A line is one message; a
bracketed paste is one message with its line breaks. Nothing here knows what a message means. None
is end of input; Ctrl-C is KeyboardInterrupt.
"""

import sys
from typing import BinaryIO

from caldrix import log
from caldrix.errors import RefusedError

PROMPT = "> "
MAX_LINE = 4 * 2**20  # bytes of one message from a pipe: more than any context holds
PASTE_MARKERS = ("\x1b[200~", "\x1b[201~")


class LineTooLong(Exception):
    """A line over MAX_LINE; it has been read to its end."""


class Terminal:
    """stdin and stdout are a terminal: editing and a history that ends with the chat."""

    def __init__(self) -> None:
        import readline

        # Read as one piece even where the terminal was not asked to mark pastes (TERM=dumb).
        if readline.__doc__ is None or "libedit" not in readline.__doc__:
            readline.parse_and_bind(r'"\e[200~": bracketed-paste-begin')

    def read(self) -> str | None:
        try:
            return _clean(input(PROMPT))
        except EOFError:
            return None

    def end_prompt(self) -> None:
        """What the shell shows next starts on its own line."""
        sys.stdout.write("\n")
        sys.stdout.flush()


class Stream:
    """Anything else: lines as they come. `prompts` for a person who sees only stderr."""

    def __init__(self, stream: BinaryIO | None, *, prompts: bool = False) -> None:
        self._stream = stream
        self._prompts = prompts

    def read(self) -> str | None:
        if self._prompts:
            log.write(PROMPT)
        line = b"" if self._stream is None else self._readline(MAX_LINE + 1)
        if not line:
            return None
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            self._skip_line()
            raise LineTooLong
        return _clean(line.decode("utf8", errors="replace").removesuffix("\n").removesuffix("\r"))

    def end_prompt(self) -> None:
        if self._prompts:
            log.write("\n")

    def _skip_line(self) -> None:
        while (rest := self._readline(MAX_LINE)) and not rest.endswith(b"\n"):
            pass

    def _readline(self, limit: int) -> bytes:
        assert self._stream is not None
        try:
            return self._stream.readline(limit)
        except OSError as error:
            raise RefusedError(f"cannot read stdin: {error.strerror or error}") from None


def open_lines(*, plain: bool) -> Terminal | Stream:
    """The reader that fits stdin, stdout and --plain."""
    if sys.stdin is None:
        return Stream(None)
    if not sys.stdin.isatty():
        return Stream(sys.stdin.buffer)
    if plain or not sys.stdout.isatty():
        return Stream(sys.stdin.buffer, prompts=True)
    return Terminal()


def _clean(line: str) -> str:
    """Without what a terminal adds around a paste, and with undecodable bytes as U+FFFD."""
    for marker in PASTE_MARKERS:
        line = line.replace(marker, "")
    return line.encode("utf8", "surrogateescape").decode("utf8", "replace")
