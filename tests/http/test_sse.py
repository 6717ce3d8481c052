"""The text of events and comments; no data can end its event early."""

import pytest

from caldrix.http import sse


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        ('{"a":1}', None, b'data: {"a":1}\n\n'),
        (b"raw", None, b"data: raw\n\n"),
        ("", None, b"data: \n\n"),
        ("é", "delta", b"event: delta\ndata: \xc3\xa9\n\n"),
        ("a\nb\r\nc\rd", None, b"data: a\ndata: b\ndata: c\ndata: d\n\n"),
        ("a\n\ndata: b", None, b"data: a\ndata: \ndata: data: b\n\n"),
    ],
)
def test_an_event(data: str | bytes, name: str | None, expected: bytes) -> None:
    assert sse.event(data, name) == expected


def test_a_comment_is_one_line() -> None:
    assert sse.comment() == b": ping\n\n"
    assert sse.comment("queued 3") == b": queued 3\n\n"
    assert sse.comment("a\n\ndata: b") == b": a data: b\n\n"


def test_the_end_of_a_stream() -> None:
    assert sse.event("[DONE]") == sse.DONE
