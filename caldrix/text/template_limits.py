"""Limits on what a chat template may cost, since a model's template is a stranger's program.

Owns the deadline of a rendering and the sizes of what it builds, checked before it is built. Cheap
fences at the doors that templates go through (loops, macros, operators, methods, filters), not a
proof. Must not know jinja2.
"""

import contextvars
import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from caldrix.errors import RefusedError

MAX_CHARACTERS = 32 << 20
MAX_SECONDS = 20.0
MAX_SOURCE = 1 << 20
MAX_WIDTH = 1 << 20  # a number given to a method or filter that pads, repeats or indents
WIDENING_FILTERS = ("batch", "center", "indent", "round", "slice", "tojson", "wordwrap")
WIDENING_METHODS = ("center", "expandtabs", "ljust", "rjust", "zfill")

_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("deadline")


class LimitError(RefusedError):
    """A template that runs too long or builds too much."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"chat template: {reason}")


@contextmanager
def deadline() -> Iterator[None]:
    """Lets `tick` raise once the code inside has run for MAX_SECONDS."""
    token = _deadline.set(time.monotonic() + MAX_SECONDS)
    try:
        yield
    finally:
        _deadline.reset(token)


def tick() -> None:
    """Called at every turn of a loop and every call of a macro."""
    if time.monotonic() > _deadline.get():
        raise LimitError(f"runs for more than {MAX_SECONDS:g} seconds")


def joined(parts: Iterable[str]) -> str:
    """The parts as one string of bounded size."""
    kept, size = [], 0
    for part in parts:
        kept.append(part)
        size += len(part)
        check_size(size)
    return "".join(kept)


def check_size(size: int) -> None:
    """Refuses a string or list of more than MAX_CHARACTERS."""
    if size > MAX_CHARACTERS:
        raise LimitError(f"builds more than {MAX_CHARACTERS} characters")


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuses `+`, `*`, `**` and `%` whose result would fill the memory."""
    if operator == "+":
        check_size(_size(left) + _size(right))
    if operator == "%" and isinstance(left, str):
        _check_format(left, right if isinstance(right, tuple) else [right], r"%[^a-zA-Z%]*\*")
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int):
                check_size(_size(value) * times)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        n_bits = left.bit_length()
        if (n_bits * right if operator == "**" else n_bits + right.bit_length()) > 4096:
            raise LimitError("computes a number of more than 4096 bits")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def check_method(function: Any, values: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Refuses a method of a string whose result would fill the memory."""
    function = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
    text, method = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(text, str):
        return
    if method == "replace" and len(values) > 1 and all(isinstance(v, str) for v in values[:2]):
        check_size(text.count(values[0]) * len(values[1]))
    if method in ("format", "format_map"):
        _check_format(text, [*values, *named.values()], r"\{[^}]*\{")
    if method in WIDENING_METHODS:
        _check_numbers([*values, *named.values()])


def _check_format(text: str, values: Sequence[Any], taken_width: str) -> None:
    """A width in the text itself, or taken from the values."""
    if re.search(r"\d{7}", text):
        raise LimitError("formats a value too wide")
    if re.search(taken_width, text):
        _check_numbers(values)


def _check_numbers(values: Iterable[Any]) -> None:
    if any(isinstance(value, int) and value > MAX_WIDTH for value in values):
        raise LimitError(f"asks for more than {MAX_WIDTH} characters or items")


def narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses big numbers after its value, which jinja2 may put behind an
    environment."""
    n_first = 2 if hasattr(function, "jinja_pass_arg") else 1

    @functools.wraps(function)
    def narrow_filter(*values: Any, **named: Any) -> Any:
        _check_numbers([*values[n_first:], *named.values()])
        return function(*values, **named)

    return narrow_filter
