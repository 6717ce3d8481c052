"""A request body to a JSON object, strictly and within bounds.

Owns what counts as JSON here: UTF-8 with an optional byte order mark, one object, no NaN or
Infinity, no half of a surrogate pair, at most 64 levels, integers of at most 4300 digits, at most
65536 arrays and objects and as many strings. Knows no field. Every failure is a 400 `invalid_json`,
but for a body that says it is a form with files.

The library reads a body in one go, in which no other thread of Python runs. So what would take it
long is told before (arrays, objects and strings, of which 4 MiB may hold a million), and numbers
are read by functions of ours, between which others get their turn.
"""

import codecs
import json
import re
from collections.abc import Awaitable, Callable

from caldrix.api.refusals import ApiError, invalid_json, shown
from caldrix.http.coding import accepted
from caldrix.http.messages import Request

MAX_DEPTH = 64
MAX_DIGITS = 4300
MAX_CONTAINERS = 1 << 16  # arrays and objects; read in 20 ms or so
MAX_STRINGS = 1 << 16  # names of fields too; read in 10 ms or so
# Bodies above this are read on a thread: a longer stall would be felt by other clients.
LARGE_BYTES = 32 << 10

# Runs work on a thread.
OffLoop = Callable[[Callable[[], dict[str, object]]], Awaitable[dict[str, object]]]

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def check_media_type(content_type: str | None) -> None:
    """Whatever a body calls itself it is read as JSON: `curl -d` says it is a form. The parts of a
    multipart body are the one thing that is surely meant in another way."""
    if content_type is None or not content_type.lower().startswith("multipart/"):
        return
    message = f"the request body must be a JSON object (got Content-Type {shown(content_type)})"
    headers = (("Accept-Encoding", accepted()), ("x-should-retry", "false"))
    raise ApiError(415, "unsupported_media_type", message, headers=headers)


async def read_object(request: Request, off_loop: OffLoop) -> dict[str, object]:
    """The object in a request's body; a large one is parsed by `off_loop`."""
    check_media_type(request.head.headers.get("content-type"))
    if len(request.body) <= LARGE_BYTES:
        return parse_object(request.body)
    return await off_loop(lambda: parse_object(request.body))


def parse_object(data: bytes) -> dict[str, object]:
    """The object in a body."""
    text = _text(data.removeprefix(codecs.BOM_UTF8))
    if not text.strip(" \t\r\n"):
        raise invalid_json("is empty; a JSON object is expected")
    _check_counts(data)
    try:
        value = json.loads(
            text, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_number
        )
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise invalid_json(f"is not valid JSON: {error.msg.lower()} at {where}") from None
    if not isinstance(value, dict):
        raise invalid_json("is not a JSON object")
    _check_depth(value)
    if _SURROGATE_ESCAPE.search(data):
        _check_surrogates(value)
    return value


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid_json(f"is not UTF-8 (byte {error.start})") from None


def _check_counts(data: bytes) -> None:
    """Counts brackets and strings; brackets in strings are left out where they would matter."""
    brackets = data.count(b"[") + data.count(b"{")
    if brackets <= MAX_CONTAINERS and data.count(b'"') <= 2 * MAX_STRINGS:
        return
    data = data.replace(rb"\\", b"").replace(rb"\"", b"")  # each quote left begins or ends a string
    containers, strings, at = 0, 0, 0
    while (start := data.find(b'"', at)) >= 0:
        containers += _count_containers(data, at, start, containers)
        strings += 1
        if strings > MAX_STRINGS:
            raise invalid_json(f"holds more than {MAX_STRINGS} strings")
        at = data.find(b'"', start + 1) + 1
        if at == 0:  # a string without an end: the library will say so
            return
    _count_containers(data, at, len(data), containers)


def _count_containers(data: bytes, start: int, end: int, before: int) -> int:
    count = data.count(b"[", start, end) + data.count(b"{", start, end)
    if before + count > MAX_CONTAINERS:
        if data.find(b"[" * (MAX_DEPTH + 1), start, end) >= 0:
            raise _too_deep()
        raise invalid_json(f"holds more than {MAX_CONTAINERS} arrays and objects")
    return count


def _refuse_constant(name: str) -> object:
    raise invalid_json(f"holds {name}, which is not JSON")


def _integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_DIGITS:
        raise invalid_json(f"holds an integer of more than {MAX_DIGITS} digits")
    return int(digits)


def _number(digits: str) -> float:
    return float(digits)


def _too_deep() -> Exception:
    return invalid_json(f"is nested deeper than {MAX_DEPTH} levels")


def _check_depth(value: object) -> None:
    """Level by level, so that the check itself is not recursive."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for parent in level for item in _containers(parent)]
        if not level:
            return
    raise _too_deep()


def _containers(value: object) -> list[object]:
    items = value.values() if isinstance(value, dict) else value
    assert not isinstance(items, str)
    return [item for item in items if isinstance(item, (dict, list))]  # type: ignore[attr-defined]


def _check_surrogates(value: object) -> None:
    left: list[object] = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            _check_string(item)
        elif isinstance(item, dict):
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            left += item


def _check_string(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid_json("holds half of a surrogate pair") from None
