"""JSON files of a model directory: read whole, bounded in size, depth and number of values.

Owns what is refused as JSON; must not know any key. As the reference library does, a key given
twice keeps its last value. NaN and the infinities, which Python's reader would take, are refused:
no JSON has them.
"""

import json
import math
import re
from pathlib import Path
from typing import NoReturn

from caldrix.formats.checkpoint import foreign_kind, opened, refusal
from caldrix.log import escape

# The largest real one is the shard index of a model with many experts: 140,000 tensors, 15 MB.
MAX_BYTES = 32_000_000
# Commas and brackets, hence values; each costs about 100 bytes once parsed.
MAX_MARKS = 400_000
MAX_DEPTH = 64

_BRACKET_OR_STRING = re.compile(rb'[\[\]{}]|"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def read_json(path: Path) -> dict[str, object]:
    """The object in this file."""
    raw = _read(path)
    if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_MARKS:
        raise refusal(path, f"more than {MAX_MARKS} JSON values")
    if _depth(raw) > MAX_DEPTH:
        raise refusal(path, f"nested deeper than {MAX_DEPTH} levels")

    def constant(text: str) -> NoReturn:
        raise refusal(path, f"holds {text}, which JSON does not have")

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise refusal(path, f"holds a number too large for a float: {text[:40]}")
        return value

    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=constant, parse_float=number)
    except json.JSONDecodeError as error:
        kind = foreign_kind(memoryview(raw))
        problem = kind or f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise refusal(path, problem) from None
    except UnicodeDecodeError as error:
        raise refusal(path, f"not JSON: byte {error.start} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise refusal(path, f"not JSON caldrix reads: {escape(str(error))[:80]}") from None
    if not isinstance(value, dict):
        raise refusal(path, f"holds a JSON {_KIND[type(value)]}, not an object")
    return value


_KIND = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def _read(path: Path) -> bytes:
    with opened(path) as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise refusal(path, f"larger than {MAX_BYTES} bytes")
    return raw


def _depth(raw: bytes) -> int:
    """The deepest nesting of brackets outside strings."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for match in _BRACKET_OR_STRING.finditer(raw):
        mark = match[0]
        if mark in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in b"]}":
            depth -= 1
    return deepest
