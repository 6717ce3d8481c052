"""Reads the fields of a JSON object: type, range, default, and which fields nobody knows.

Owns the rules that hold for every field (null is absent; a boolean is no number; a numeric string
is refused; an integer may be written 5.0) and the wording of their refusals. Knows no field by
name. The order of the calls is the order in which faults are reported.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

from caldrix.api.refusals import (
    ApiError,
    missing,
    wrong_type,
    wrong_value,
)

_SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_IGNORED = 16


class Fields:
    """One object of a request. `path` is what stands before the names of its fields."""

    def __init__(self, values: Mapping[str, object], path: str = "") -> None:
        self.values = values
        self._path = path
        self._known: set[str] = set()

    def param(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> object:
        """The value as it came; None when it is absent or null."""
        self._known.add(name)
        return self.values.get(name)

    def know(self, names: Sequence[str]) -> None:
        """Fields that are accepted without effect."""
        self._known.update(names)

    @property
    def ignored(self) -> list[str]:
        """Names nobody asked for that may stand in a header: the first sixteen, sorted."""
        unknown = (n for n in self.values if n not in self._known and _SAFE_NAME.fullmatch(n))
        return sorted(unknown)[:MAX_IGNORED]

    def number(
        self, name: str, accepts: Callable[[float], bool], wanted: str, default: float
    ) -> float:
        value = self.get(name)
        if value is None:
            return default
        number = as_number(value)
        if number is None:
            raise wrong_type(self.param(name), wanted, value)
        if not math.isfinite(number) or not accepts(number):
            raise wrong_value(self.param(name), wanted, value)
        return number

    def integer(self, name: str, low: int | None, high: int | None, wanted: str) -> int | None:
        """None for `low` or `high`: no bound."""
        value = self.get(name)
        if value is None:
            return None
        number = as_integer(value)
        if number is None:
            raise wrong_type(self.param(name), wanted, value)
        if (low is not None and number < low) or (high is not None and number > high):
            raise wrong_value(self.param(name), wanted, value)
        return number

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self.param(name), "true or false", value)
        return value

    def string(self, name: str) -> str | None:
        value = self.get(name)
        if value is None or isinstance(value, str):
            return value
        raise wrong_type(self.param(name), "a string", value)

    def required_string(self, name: str) -> str:
        value = self.string(name)
        if value is None:
            raise missing(self.param(name))
        return value

    def choice(self, name: str, names: Sequence[str]) -> str | None:
        value = self.string(name)
        if value is None or value in names:
            return value
        raise wrong_value(self.param(name), f"one of {', '.join(names)}", value)

    def array(self, name: str, most: int) -> list[object] | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise wrong_type(self.param(name), "an array", value)
        if len(value) > most:
            raise too_many(self.param(name), most, len(value))
        return value

    def object(self, name: str) -> "Fields | None":
        value = self.get(name)
        if value is None:
            return None
        return Fields(as_object(value, self.param(name)), self.param(name))


def as_object(value: object, param: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    return value


def as_number(value: object) -> float | None:
    """The number in a JSON value; infinity where it is too large for one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def as_integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


def too_many(param: str, most: int, n: int) -> ApiError:
    message = f"{param} must have at most {most} items (got {n})"
    return ApiError(400, "array_above_max_length", message, param)


def empty_array(param: str) -> ApiError:
    return ApiError(400, "empty_array", f"{param} must have at least one item (got [])", param)


def too_long(param: str, most: int, n_bytes: int) -> ApiError:
    message = f"{param} must be at most {most} bytes (got {n_bytes})"
    return ApiError(400, "string_above_max_length", message, param)
