"""Hosts, origins and keys out of any text: read or refused in one line, and read the same twice."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.api.access import parse_key
from caldrix.api.hosts import host_of, parse_host, parse_origin
from caldrix.errors import RefusedError

PARTS = ["http", "https", "app", "://", ":", "/", "a", "A.b", ".", "[", "]", "::1", "[::1]", "@"]
PARTS += [
    "127.0.0.1",
    "0",
    "80",
    "443",
    "65536",
    "%",
    "*",
    "null",
    "-",
    "_",
    "\u00fc",
    "\x00",
    "\n",
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PARTS), max_size=8).map("".join))


def refusal(parse: Callable[[str], str], text: str) -> str:
    """ "" for a value that is read, and read the same when it is read again."""
    try:
        value = parse(text)
    except RefusedError as error:
        return str(error)
    assert parse(value) == value
    return ""


@pytest.mark.parametrize("parse", [parse_host, parse_origin, parse_key])
@given(text=TEXTS)
def test_a_value_is_read_or_refused_in_a_line(parse: Callable[[str], str], text: str) -> None:
    assert refusal(parse, text).isprintable()


@given(text=TEXTS)
def test_a_port_changes_no_host(text: str) -> None:
    assert host_of(f"{text}:8425") in (host_of(text), "")
