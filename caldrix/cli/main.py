"""The command table, and the one place where every error becomes a line and an exit status.

`caldrix: reason` on stderr and the status that the error carries; 130 for Ctrl-C; a reader of
stdout that has gone away ends the program quietly. Anything else that escapes is a bug, and is
called one. Imports nothing before it knows the command: `caldrix --version` stays instant.
"""

import errno
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from caldrix.cli.interrupts import INTERRUPTED, at_once
from caldrix.errors import CaldrixError, RefusedError, UsageError, printable

LATER = {
    "doctor": "what each lane of this machine can do",
    "models": "the models this program knows",
}


def main(argv: Sequence[str] | None = None) -> int:
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (for the life of the process)
    # No kernel here is of numpy's BLAS, whose idle threads cost time and address space.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not os.environ.get("HOME", "/"):
        del os.environ["HOME"]  # an empty one would put caches under /
    try:
        return _status_of(list(sys.argv[1:] if argv is None else argv))
    finally:
        _settle(sys.stdout)
        _settle(sys.stderr)


def _status_of(arguments: list[str]) -> int:
    try:
        with at_once():
            return _dispatch(arguments)
    except CaldrixError as error:
        return _refuse(str(error), error.exit_status)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 1
    except MemoryError:
        return _refuse("out of memory", 1)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return _refuse("out of memory", 1)
        text = str(error).strip().partition("\n")[0] or "no reason given"
        return _refuse(f"internal error: {type(error).__name__}: {text} (a bug in caldrix)", 1)


def _dispatch(arguments: list[str]) -> int:
    from caldrix import log
    from caldrix.cli import usage

    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if not command:
        log.write(usage.overview())
        return 2
    if command in ("--help", "-h", "help"):
        return _print(usage.overview())
    if command in ("--version", "-V"):
        from caldrix import __version__

        return _print(f"caldrix {__version__}\n")
    if command in usage.COMMANDS and rest and rest[0] in ("--help", "-h"):
        return _print(usage.command_help(command))
    if command == "run":
        from caldrix.cli import run

        return run.main(rest)
    if command == "plan":
        from caldrix.cli import plan

        return plan.main(rest)
    if command == "bench":
        from caldrix.cli import bench

        return bench.main(rest)
    if command == "serve":
        from caldrix.cli import serve

        return serve.main(rest)
    if command in LATER:
        raise RefusedError(f"{command} ({LATER[command]}) is not in this version yet")
    known = ", ".join(usage.COMMANDS)
    raise UsageError(f"unknown command {printable(command)}: takes {known}; see caldrix --help")


def _print(text: str) -> int:
    if sys.stdout is not None:
        from caldrix.cli.output import Output

        Output(exact=True).write(text)
    return 0


def _refuse(message: str, status: int) -> int:
    from caldrix import log

    log.status(message)
    return status


def _settle(stream: TextIO | None) -> None:
    """What a stream cannot take any more must not raise again at exit: that would be status 120."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
