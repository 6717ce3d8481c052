"""What counts as a JSON body."""

import contextlib
import threading
import time

import pytest

from caldrix.api.json_body import MAX_CONTAINERS, MAX_DEPTH, MAX_STRINGS, parse_object
from caldrix.api.refusals import ApiError


def nested(n: int) -> bytes:
    """An object that is `n` levels deep."""
    return b'{"a":' + b"[" * (n - 1) + b"]" * (n - 1) + b"}"


def wide(n: int, item: bytes, more: bytes = b"") -> bytes:
    """An object with an array of `n` items, and `more`."""
    return b'{"a":[' + b",".join([item] * n) + b"]" + more + b"}"


BRACKETS = b"[{" * MAX_CONTAINERS
ACCEPTED = [
    (b"{}", {}),
    (b"\xef\xbb\xbf{}", {}),
    (b' {"a": 1, "a": 2}\n', {"a": 2}),
    (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
    ('{"é": 5.0}'.encode(), {"é": 5.0}),
    (b'{"a": ' + b"9" * 4300 + b"}", {"a": int("9" * 4300)}),
    (b'{"a": -' + b"9" * 4300 + b"}", {"a": -int("9" * 4300)}),
    (b'{"a": [1.5, -0.0, 1e2, 1E-400]}', {"a": [1.5, 0.0, 100.0, 0.0]}),
    (wide(MAX_CONTAINERS - 2, b"[]"), {"a": [[]] * (MAX_CONTAINERS - 2)}),
    (wide(MAX_STRINGS - 1, b'""'), {"a": [""] * (MAX_STRINGS - 1)}),
    (b'{"a":"' + rb"\"" * (2 * MAX_STRINGS) + b'"}', {"a": '"' * (2 * MAX_STRINGS)}),
    (b'{"a":"' + BRACKETS + b'"}', {"a": BRACKETS.decode()}),
    (
        b'{"a":"\\\\","b":"\\"' + BRACKETS + b'\\\\\\""}',
        {"a": "\\", "b": '"' + BRACKETS.decode() + '\\"'},
    ),
]

REFUSED = [
    (b"", "empty"),
    (b" \n", "empty"),
    (b"{", "not valid JSON"),
    (b"[]", "not a JSON object"),
    (b'"x"', "not a JSON object"),
    (b"null", "not a JSON object"),
    (b"{}{}", "not valid JSON"),
    (b"{'a': 1}", "not valid JSON"),
    (b'{"a": 1,}', "not valid JSON"),
    (b'{"a": "\n"}', "not valid JSON"),
    (b"\xff\xfe{}", "not UTF-8"),
    (b'{"a": NaN}', "NaN"),
    (b'{"a": -Infinity}', "-Infinity"),
    (b'{"a": "\\ud800"}', "surrogate"),
    (b'{"a": ["\\udc00x"]}', "surrogate"),
    (b'{"\\ud800": 1}', "surrogate"),
    (b'{"a": ' + b"9" * 4301 + b"}", "4300 digits"),
    (b'{"a": -' + b"9" * 4301 + b"}", "4300 digits"),
    (nested(MAX_DEPTH + 1), "64 levels"),
    (nested(100_000), "64 levels"),
    (b"[" * 100_000, "64 levels"),
    (wide(MAX_CONTAINERS - 1, b"[]"), "65536 arrays and objects"),
    (wide(MAX_CONTAINERS - 1, b"{}", b',"b":"[{"'), "65536 arrays and objects"),
    (b'{"b":"\\"","a":' + wide(MAX_CONTAINERS, b"[]"), "65536 arrays and objects"),
    (b'{"a":"' + BRACKETS, "not valid JSON"),
    (wide(MAX_STRINGS, b'""'), "65536 strings"),
    (wide(MAX_STRINGS, b'"[{\\""'), "65536 strings"),
]


@pytest.mark.parametrize(("data", "value"), ACCEPTED)
def test_read(data: bytes, value: object) -> None:
    assert parse_object(data) == value


def test_as_deep_as_allowed() -> None:
    assert list(parse_object(nested(MAX_DEPTH))) == ["a"]


@pytest.mark.parametrize(("data", "words"), REFUSED)
def test_refused(data: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        parse_object(data)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


BODY_BYTES = 4 << 20
WORST = [  # what a body is filled with
    b"1,", b"0.5,", b"[],", b"{},", b"[" * 60 + b"]" * 60 + b",", b'"",', b"null,", b'{"a":1},',
    b'"\\n\\n\\n\\n",',
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("item", WORST)
def test_no_body_keeps_other_threads_from_running(item: bytes) -> None:
    """While one thread reads it, another runs often: 4 MiB of empty arrays kept it waiting for
    200 ms, of arrays in arrays for 750 ms, of fractions and strings for 60 ms."""
    body = b'{"a":[' + item * ((BODY_BYTES - 16) // len(item)) + b"0]}"
    assert min(_stall(body) for _ in range(3)) < 0.045


def _stall(body: bytes) -> float:
    def read() -> None:
        with contextlib.suppress(ApiError):
            parse_object(body)

    thread = threading.Thread(target=read)
    longest, last = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        time.sleep(0.0002)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest
