"""What a flag's value may be: text from a command line or a chat command to a checked value.

Owns the kinds of values and the words that describe them in a refusal. Knows no flag, no model and
no lane. A kind either gives the value or raises ValueError; who asked builds the sentence, so that
`--top-p` and `/top-p` refuse alike. A kind of which that says too little raises RefusedError.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_INTEGER = re.compile(r"[+-]?[0-9]{1,25}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """`parse` gives the value or raises ValueError; `accepts` says in words what it takes."""

    parse: Callable[[str], Any]
    accepts: str


def integer(low: int, high: int, what: str = "a whole number") -> Kind:
    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    limit = f"of {low} or more" if high >= 2**31 - 1 else f"from {low} to {high}"
    return Kind(parse, f"{what} {limit}")


def number(allowed: Callable[[float], bool], accepts: str) -> Kind:
    """A finite decimal number; nan, inf, hexadecimal and digits of other scripts are refused."""

    def parse(text: str) -> float:
        value = float(text) if len(text) <= 64 and _NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(value) or not allowed(value):
            raise ValueError
        return value

    return Kind(parse, accepts)


def choice(*names: str) -> Kind:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    return Kind(parse, names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}")


def count_choice(*counts: int) -> Kind:
    """One of a few counts: `--max-batch 1|8`."""
    names = choice(*map(str, counts))
    return Kind(lambda text: int(names.parse(text)), names.accepts)


def text(accepts: str) -> Kind:
    """Any text but none at all."""

    def parse(value: str) -> str:
        if not value or "\0" in value:
            raise ValueError
        return value

    return Kind(parse, accepts)


def utf8_text(accepts: str) -> Kind:
    """Text that can be written in a reply: no bytes that are not UTF-8."""

    def parse(value: str) -> str:
        value.encode()  # its UnicodeEncodeError is a ValueError
        return str(text(accepts).parse(value))

    return Kind(parse, accepts)


def size(accepts: str) -> Kind:
    def parse(value: str) -> int:
        from caldrix.units import parse_size

        n_bytes = parse_size(value) if len(value) <= 25 else 0
        if not 0 < n_bytes < 2**63:
            raise ValueError
        return n_bytes

    return Kind(parse, accepts)


def _listed(one: Callable[[str], str]) -> Callable[[str], tuple[str, ...]]:
    """Values with commas between, at least one."""

    def parse(value: str) -> tuple[str, ...]:
        found = tuple(one(part.strip()) for part in value.split(",") if part.strip())
        if not found:
            raise ValueError
        return found

    return parse


def _counts(value: str) -> tuple[int, ...]:
    one = integer(1, 2**24)
    return tuple(one.parse(part) for part in _listed(str)(value))


def _origins(value: str) -> tuple[str, ...]:
    from caldrix.api.hosts import parse_origin

    return () if value == "off" else _listed(parse_origin)(value)


def _hosts(value: str) -> tuple[str, ...] | None:
    from caldrix.api.hosts import parse_host

    return None if value == "off" else _listed(parse_host)(value)


def _key(value: str) -> str:
    from caldrix.api.access import parse_key

    return parse_key(value)


ANY_TEXT = Kind(lambda value: value, "any text")
SWITCH = Kind(lambda value: True, "no value")

POSITIVE = integer(1, 2**31 - 1)
TEMPERATURE = number(lambda t: t >= 0, "a finite number of 0 or more")
TOP_K = integer(0, 2**31 - 1)
TOP_P = number(lambda p: 0 < p <= 1, "a number above 0 and at most 1")
MIN_P = number(lambda m: 0 <= m <= 1, "a number from 0 to 1")
SECONDS = number(lambda s: 0 <= s <= 86400, "a number of seconds from 0 to 86400")
REPETITION_PENALTY = number(lambda r: r > 0, "a finite number above 0")


def _seed(value: str) -> int:
    if not _INTEGER.fullmatch(value) or not -(2**63) <= int(value) < 2**63:
        raise ValueError
    return int(value)


COUNTS = Kind(_counts, "whole numbers of 1 or more with commas between")
ORIGINS = Kind(_origins, "origins with commas between, * or off")
HOSTS = Kind(_hosts, "hosts with commas between, or off")
KEY = Kind(_key, "a key")
SEED = Kind(_seed, "a whole number that fits 64 bits")
