"""What counts as a JSON body."""

import pytest

from caldrix.api.json_body import MAX_DEPTH, parse_object
from caldrix.api.refusals import ApiError


def nested(n: int) -> bytes:
    """An object that is `n` levels deep."""
    return b'{"a":' + b"[" * (n - 1) + b"]" * (n - 1) + b"}"


ACCEPTED = [
    (b"{}", {}),
    (b"\xef\xbb\xbf{}", {}),
    (b' {"a": 1, "a": 2}\n', {"a": 2}),
    (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
    ('{"é": 5.0}'.encode(), {"é": 5.0}),
    (b'{"a": ' + b"9" * 4300 + b"}", {"a": int("9" * 4300)}),
    (b'{"a": -' + b"9" * 4300 + b"}", {"a": -int("9" * 4300)}),
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
