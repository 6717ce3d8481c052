"""Limits on what a chat template may cost, since a model's template is a stranger's program.

Owns the deadline of a rendering and the sizes of what it builds. Nothing grows past a bound: every
loop turn looks at the clock, every value that an operator, a call, a filter or a literal makes is
measured, and what could be large at once (a width, a replacement, a separator) is computed before
it is built. Shared parts count as often as they would be written out. Must not know jinja2.
"""

import contextvars
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from caldrix.errors import RefusedError

# The largest context known is 10 million tokens; 1 million of English are 4 million characters.
MAX_CHARACTERS = 4 << 20
MAX_ITEMS = 1 << 18  # values inside one list or dict, at any depth
MAX_SECONDS = 20.0
# Of a source. The longest known has 30,000 characters; a token costs up to 3 kB compiled.
MAX_SOURCE = 1 << 18
MAX_TOKENS = 16_000
MAX_WIDTH = 1 << 16  # a number given to a method or filter that pads, repeats or indents
MAX_SLOW = 1 << 16  # characters for what copies a text at every step
MAX_FORMAT = 256  # characters of a date's form: each may become 256

WIDENING = (
    "batch",
    "center",
    "expandtabs",
    "ljust",
    "rjust",
    "round",
    "slice",
    "to_bytes",
    "zfill",
)
SLOW = ("striptags", "urlize", "wordwrap")

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
    """Refuses a string of more than MAX_CHARACTERS."""
    if size > MAX_CHARACTERS:
        raise LimitError(f"builds more than {MAX_CHARACTERS} characters")


def measured(value: Any) -> Any:
    """`value`, unless written out it would be too large. Only what a template can make is looked
    into: a list that holds another twice, and so on thirty times over, has a billion items."""
    _written(value)
    return value


def _written(value: Any) -> int:
    """About how many characters `value` has when it is written out."""
    if isinstance(value, (str, bytes)):
        check_size(len(value))
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    if _parts(value) is None:
        return 32
    n_items = n_characters = 0
    left = [iter((value,))]
    while left:
        for part in left[-1]:
            n_items += 1
            n_characters += len(part) if isinstance(part, (str, bytes)) else 4
            if n_items > MAX_ITEMS:
                raise LimitError(f"builds a value of more than {MAX_ITEMS} parts")
            check_size(n_characters)
            if (inner := _parts(part)) is not None:
                left.append(iter(inner))
                break
        else:
            left.pop()
    return n_characters


def _parts(value: Any) -> Iterable[Any] | None:
    """What is written out with a value; None for one that has no parts."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if type(value).__name__ == "Namespace":  # jinja2 writes it out whole
        return list(value._Namespace__attrs.values())
    return None


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuses `+`, `*`, `**` and `%` whose result would fill the memory."""
    if operator == "+":
        check_size(_size(left) + _size(right))
    if operator == "%" and isinstance(left, (str, bytes)):
        values = right if isinstance(right, tuple) else (right,)
        _check_format(left, values, r"%[^a-zA-Z%]*\*")
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int):
                check_size(_size(value) * times)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        n_bits = left.bit_length()
        if (n_bits * right if operator == "**" else n_bits + right.bit_length()) > 4096:
            raise LimitError("computes a number of more than 4096 bits")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


def check_call(function: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
    """Refuses a method whose result would fill the memory or that would not end soon; the arguments
    to call it with."""
    function = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
    owner, method = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(owner, (str, bytes, int)):
        return values
    return _checked(method, owner, values, named)


def filtered(name: str, function: Callable[..., Any], value: Any, values: Any, named: Any) -> Any:
    """What a filter makes of a value, measured before and after. `function` takes the value first,
    jinja2's own arguments being bound already."""
    measured(value)
    if name == "join":
        value = measured(list(islice(value, MAX_ITEMS + 1)))
        separator = str(values[0] if values else named.get("d", ""))
        check_size(len(separator) * len(value))
    elif name == "sum" and isinstance(
        values[1] if len(values) > 1 else named.get("start"), Iterable
    ):
        raise LimitError("sums up what are no numbers")
    elif name == "indent":
        width = values[0] if values else named.get("width", 4)
        each = len(width) if isinstance(width, str) else width
        check_size((str(value).count("\n") + 1) * each if isinstance(each, int) else 0)
    elif name == "tojson":
        _check_numbers([*values, *named.values()], 64)
    values = _checked(name, value, values, named)
    return measured(function(value, *values, **named))


def _checked(
    name: str, owner: Any, values: Sequence[Any], named: Mapping[str, Any]
) -> Sequence[Any]:
    """The checks that methods of strings share with the filters of the same names."""
    given = [*values, *named.values()]
    for value in given:
        measured(value)
    if name == "replace" and len(given) > 1:
        old, new = str(given[0]), str(given[1])
        check_size(str(owner).count(old) * len(new))
    elif name == "translate" and given and isinstance(given[0], Mapping):
        longest = max((_size(new) for new in given[0].values()), default=0)
        check_size(_size(owner) * longest)
    elif name == "join" and values and not isinstance(owner, list):
        items = list(islice(values[0], MAX_ITEMS + 1))
        check_size(_size(owner) * len(items))
        return [measured(items)]
    elif name in ("format", "format_map"):
        _check_format(str(owner), given, r"\{[^}]*\{|%[^a-zA-Z%]*\*")
    elif name in SLOW and _size(owner) > MAX_SLOW:
        raise LimitError(f"gives more than {MAX_SLOW} characters to {name}")
    if name in (*WIDENING, *SLOW):
        _check_numbers(given, MAX_WIDTH)
    return values


_WIDTHS = re.compile(r"%[-+ #]*(\d+)|\.(\d+)|\{[^{}]*?(\d+)[^{}\d]*\}")


def _check_format(text: str | bytes, values: Sequence[Any], taken_width: str) -> None:
    """As if every place in the text were as wide as the widest says, and took the longest value."""
    form = text if isinstance(text, str) else text.decode("latin-1")
    widths = [int(width[:9]) for found in _WIDTHS.findall(form) for width in found if width]
    if re.search(taken_width, form):
        _check_numbers(values, MAX_WIDTH)
        widths += [value for value in values if isinstance(value, int)]
    widest = max([*map(_written, values), *widths], default=0)
    check_size(len(form) + (form.count("{") + form.count("%")) * widest)


def _check_numbers(values: Iterable[Any], most: int) -> None:
    for value in values:
        if isinstance(value, int) and value > most:
            raise LimitError(f"asks for more than {most} characters or items")
        if isinstance(value, str) and len(value) > most:
            raise LimitError(f"pads with more than {most} characters")


def check_date(form: str) -> None:
    """Refuses a form of strftime whose result would fill the memory."""
    if len(form) > MAX_FORMAT or re.search(r"\d{3}", form):
        raise LimitError(f"formats a date with more than {MAX_FORMAT} characters, or a wide one")
