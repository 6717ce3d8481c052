"""JSON files that lie beside a model's weights: read with one-line refusals.

Owns the limits on such a file (size, nesting) and the wording when one is damaged. Must not know
what a file means.
"""

import json
import os
from pathlib import Path

from caldrix.errors import RefusedError, printable

# The largest known, a tokenizer_config.json with 6,400 added tokens, has 1.2 MB.
MAX_BYTES = 16_000_000
# Commas and brackets, hence values; each costs about 100 bytes once parsed.
MAX_MARKS = 400_000


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a file of at most `limit`."""
    try:
        if (size := path.stat().st_size) > limit:
            raise RefusedError(f"{path}: {size} bytes; at most {limit} are read")
        with open(path, "rb") as file:
            return file.read(size)  # not the limit, which would be allocated
    except OSError as error:
        raise RefusedError(f"{path}: cannot be read: {error.strerror}") from None


def read_text(path: Path) -> str:
    """The text of a file in UTF-8."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RefusedError(f"{path}: not UTF-8 at byte {error.start}") from None


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in `path`; an empty one where there is no such file."""
    if not os.path.isfile(path):
        return {}
    text = read_text(path)
    if sum(map(text.count, ",[{")) > MAX_MARKS:
        raise RefusedError(f"{path}: more than {MAX_MARKS} JSON values")
    try:
        value = json.loads(text)
    except RecursionError:
        raise RefusedError(f"{path}: nested too deep") from None
    except ValueError as error:
        raise RefusedError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RefusedError(f"{path}: a JSON object is needed, this is {printable(value)}")
    return value


def token_content(value: object, where: str) -> str | None:
    """A token in a configuration: a string, an object with `content`, or null."""
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise RefusedError(
        f"{where} is {printable(value)}; a string or an object with content is accepted"
    )
