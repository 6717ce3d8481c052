"""Status lines for the person at the terminal.

The only library module that writes to stderr. Answers never pass through here: they go to stdout.
A line is written whole, so that lines of several threads do not mix, and control characters from
outside are escaped.
"""

import sys


def escape(text: str) -> str:
    """`text` with control characters spelled out, so that foreign bytes cannot steer a terminal."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


def status(message: str) -> None:
    """Writes one line, `caldrix: message`, to stderr."""
    write(f"caldrix: {escape(message)}\n")


def write(text: str) -> None:
    """Writes `text` to stderr as it is; a stderr that is gone is no reason to stop."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # AttributeError: no stderr at all
        pass


def redraw(text: str) -> None:
    """Draws `text` over the current line of a terminal, "" to erase it; else does nothing."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    import shutil  # slow to load, and most runs draw nothing

    try:
        sys.stderr.write(f"\r{escape(text)[: shutil.get_terminal_size().columns - 1]}\x1b[K")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
