"""The keys that a server asks for: of the command line, of a file and of the environment, together.

Owns reading the file, and what is said of one that others can read. No message holds a key.
"""

import os
import stat

from caldrix import log
from caldrix.api.access import parse_key
from caldrix.cli.parse import CommandLine
from caldrix.errors import RefusedError, printable

VARIABLE = "CALDRIX_API_KEY"
MAX_FILE_BYTES = 64 * 1024


def server_keys(line: CommandLine) -> tuple[str, ...]:
    """Every key that opens the server; none when none is given anywhere."""
    found = [*line["api_key"]]
    if line["api_key_file"] is not None:
        found += read_keys(line["api_key_file"])
    if inherited := os.environ.get(VARIABLE):
        try:
            found.append(parse_key(inherited))
        except RefusedError as error:
            raise RefusedError(f"{VARIABLE}: {error}") from None
    return tuple(dict.fromkeys(found))


def read_keys(path: str) -> list[str]:
    """The lines of --api-key-file. A file without one is refused, or it would open the server."""
    name = f"--api-key-file {printable(path)}"
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno())
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RefusedError(f"{name}: {reason.lower()}") from None
    if len(data) > MAX_FILE_BYTES:
        raise RefusedError(f"{name}: is over {MAX_FILE_BYTES // 1024} KiB; it takes a key a line")
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise RefusedError(f"{name}: is no UTF-8 text; it takes a key a line") from None
    keys = [_line_key(name, number, text) for number, text in enumerate(lines, 1) if text.strip()]
    if not keys:
        raise RefusedError(f"{name}: holds no key; it takes a key a line")
    warn_if_readable(name, mode)
    return keys


def _line_key(name: str, number: int, text: str) -> str:
    try:
        return parse_key(text)
    except RefusedError as error:
        raise RefusedError(f"{name}: line {number}: {error}") from None


def warn_if_readable(name: str, mode: os.stat_result) -> None:
    """As ssh has it, a group may read what it was given by somebody else, such as root."""
    if not stat.S_ISREG(mode.st_mode):
        return
    too_many = 0o077 if mode.st_uid == os.geteuid() else 0o007
    if mode.st_mode & too_many:
        bits = stat.S_IMODE(mode.st_mode)
        log.status(
            f"warning: {name} is open to other users of this machine (mode {bits:04o}); "
            "chmod 600 keeps it from them"
        )
