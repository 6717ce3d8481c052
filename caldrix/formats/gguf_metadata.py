"""GGUF's typed keys and values, and the cursor that reads them from a mapped file.

Owns the value types and the bounds on keys, strings and arrays. Must not know what a key means,
nor anything of tensors. Strings and arrays are only walked at open and decoded when asked for:
most keys of a file are never read, and an array of small numbers takes ten times its bytes as
Python objects.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError

from caldrix.errors import RefusedError, printable
from caldrix.formats.checkpoint import MappedFile
from caldrix.native_files import walk_strings

U32 = Struct("<I")
U64 = Struct("<Q")

MAX_KEYS = 65536
MAX_NAME_BYTES = 256
# The strings of one file, walked at open; the largest real vocabularies have 700,000 with merges.
MAX_STRINGS = 1 << 22
# What is decoded, as it lies in a file and as the Python objects of all keys together: those of
# 450,000 merges and 200,000 tokens take 45 MB.
MAX_STRING_BYTES = 4_000_000
MAX_DECODED_BYTES = 56_000_000
NUMBER_BYTES = 40
# Of the file's strings that are decoded before their cost is counted.
STEP_BYTES = 1 << 18

# Value type number to layout; 8 is a string and 9 an array.
_NUMBERS = {
    0: Struct("<B"), 1: Struct("<b"), 2: Struct("<H"), 3: Struct("<h"), 4: U32, 5: Struct("<i"),
    6: Struct("<f"), 7: Struct("<B"), 10: U64, 11: Struct("<q"), 12: Struct("<d"),
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9


class Cursor:
    """A position in a mapped file; every read is checked against the file's size."""

    __slots__ = ("file", "position", "strings_left")

    def __init__(self, file: MappedFile, position: int = 0) -> None:
        self.file = file
        self.position = position
        self.strings_left = MAX_STRINGS

    def cut_short(self, what: str) -> RefusedError:
        return self.file.refusal(f"cut short: {self.file.size} bytes, {what} goes on after them")

    def number(self, layout: Struct, what: str) -> int | float:
        try:
            (value,) = layout.unpack_from(self.file.view, self.position)
        except StructError:
            raise self.cut_short(what) from None
        self.position += layout.size
        return value  # type: ignore[no-any-return]

    def count(self, layout: Struct, what: str) -> int:
        return int(self.number(layout, what))

    def skip(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.file.size - self.position:
            raise self.cut_short(f"{what} of {n_bytes} bytes")
        self.position += n_bytes

    def name(self, what: str) -> str:
        """A key or a tensor's name: short, not empty, printable."""
        length = self.count(U64, what)
        if not 0 < length <= MAX_NAME_BYTES:
            raise self.file.refusal(
                f"{what} has a name of {length} bytes; 1 to {MAX_NAME_BYTES} are accepted"
            )
        start = self.position
        self.skip(length, f"the name of {what}")
        try:
            name = str(self.file.view[start : self.position], "utf-8")
        except UnicodeDecodeError:
            raise self.file.refusal(f"{what} has a name that is not UTF-8") from None
        if not name.isprintable():
            raise self.file.refusal(f"{what} has a name that does not print: {printable(name)}")
        return name


@dataclass(frozen=True, slots=True)
class _Span:
    """A string or an array left in the file; a string is one item of type _STRING."""

    is_array: bool
    item_type: int
    n_items: int
    offset: int


class Metadata(Mapping[str, object]):
    """The keys of one file: str, int, float, bool, or a list of them; decoded on first use."""

    def __init__(self, file: MappedFile, values: dict[str, object]) -> None:
        self._file = file
        self._values = values
        self._bytes_left = MAX_DECODED_BYTES

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        if isinstance(value, _Span):
            value = self._values[key] = self._decode(f"metadata key {printable(key)}", value)
        return value

    def count(self, key: str) -> int:
        """How many items an array has, without decoding it; 0 for anything else or nothing."""
        value = self._values.get(key)
        if isinstance(value, _Span):
            return value.n_items if value.is_array else 0
        return len(value) if isinstance(value, list) else 0

    def _decode(self, what: str, span: _Span) -> object:
        if span.item_type == _STRING:
            strings = self._decode_strings(what, span)
            return strings if span.is_array else strings[0]
        self._spend(span.n_items * NUMBER_BYTES, what)
        layout = _NUMBERS[span.item_type]
        items = Struct(f"<{span.n_items}{layout.format[-1]}").unpack_from(
            self._file.view, span.offset
        )
        if span.item_type == _BOOL:
            return [_boolean(self._file, item, what) for item in items]
        return list(items)

    def _decode_strings(self, what: str, span: _Span) -> list[str]:
        """In C, and many at once, all but those that are very long or hold a NUL."""
        strings: list[str] = []
        position, room = span.offset, bytearray(STEP_BYTES)
        while (n_left := span.n_items - len(strings)) > 0:
            n, position, n_bytes = walk_strings(self._file.view, position, n_left, room)
            raw = memoryview(room)[:n_bytes]
            if n == 0:
                start = position + U64.size
                position = start + U64.unpack_from(self._file.view, position)[0]
                raw = self._file.view[start:position]
                if len(raw) > MAX_STRING_BYTES:
                    problem = f"{what} has a string of {len(raw)} bytes"
                    raise self._file.refusal(f"{problem}; up to {MAX_STRING_BYTES} are accepted")
            try:
                text = str(raw, "utf-8")
            except UnicodeDecodeError as error:
                n_good = raw[: error.start].tobytes().count(0) if n else 0
                nth = f"string {len(strings) + n_good + 1} of {span.n_items}"
                raise self._file.refusal(f"{what}: {nth} is not UTF-8") from None
            found = text.split("\0")[:-1] if n else [text]
            self._spend(_size_of(found), what)
            strings += found
        return strings

    def _spend(self, n_bytes: int, what: str) -> None:
        """Counts what decoding costs, and refuses a file whose metadata would fill the memory."""
        self._bytes_left -= n_bytes
        if self._bytes_left < 0:
            limit = f"over {MAX_DECODED_BYTES} bytes with the keys before it"
            raise self._file.refusal(f"{what} takes too much memory: {limit}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _size_of(strings: list[str]) -> int:
    """What they and their places in a list take."""
    return sum(map(str.__sizeof__, strings)) + 8 * len(strings)


def read_metadata(cursor: Cursor, n_keys: int) -> Metadata:
    """Walks `n_keys` keys with their values and leaves the cursor behind them."""
    if n_keys > MAX_KEYS:
        raise cursor.file.refusal(f"{n_keys} metadata keys; up to {MAX_KEYS} are accepted")
    values: dict[str, object] = {}
    for index in range(n_keys):
        key = cursor.name(f"metadata key {index + 1} of {n_keys}")
        if key in values:
            raise cursor.file.refusal(f"metadata key {printable(key)} is given twice")
        values[key] = _read_value(cursor, f"metadata key {printable(key)}")
    return Metadata(cursor.file, values)


def _read_value(cursor: Cursor, what: str) -> object:
    value_type = cursor.count(U32, what)
    if value_type == _STRING:
        return _walk(cursor, False, _STRING, 1, what)
    if value_type == _ARRAY:
        item_type = cursor.count(U32, what)
        return _walk(cursor, True, item_type, cursor.count(U64, what), what)
    layout = _NUMBERS.get(value_type)
    if layout is None:
        raise cursor.file.refusal(f"{what} has value type {value_type}; types 0 to 12 exist")
    number = cursor.number(layout, what)
    if value_type == _BOOL:
        return _boolean(cursor.file, number, what)
    return number


def _boolean(file: MappedFile, byte: int | float, what: str) -> bool:
    if byte not in (0, 1):
        raise file.refusal(f"{what} is a boolean with the byte {byte}; 0 and 1 are accepted")
    return byte == 1


def _walk(cursor: Cursor, is_array: bool, item_type: int, n_items: int, what: str) -> _Span:
    """Moves past a string or an array, every item of which lies in the file."""
    span = _Span(is_array, item_type, n_items, cursor.position)
    if item_type != _STRING:
        layout = _NUMBERS.get(item_type)
        if layout is None:
            raise cursor.file.refusal(
                f"{what} is an array of value type {item_type}; 0 to 8 and 10 to 12 are accepted"
            )
        cursor.skip(n_items * layout.size, what)
        return span
    if n_items > cursor.strings_left:
        raise cursor.file.refusal(
            f"{what} has {n_items} strings; {MAX_STRINGS} in all are accepted"
        )
    cursor.strings_left -= n_items
    if n_items * U64.size > cursor.file.size - cursor.position:
        raise cursor.cut_short(f"{what} with {n_items} strings")
    n_walked, position, _ = walk_strings(cursor.file.view, cursor.position, n_items)
    if n_walked < n_items:
        raise cursor.cut_short(what)
    cursor.position = position
    return span
