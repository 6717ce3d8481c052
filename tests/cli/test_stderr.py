"""Stderr while a server runs: whoever reads it slowly, or not at all, holds nobody up."""

import os
import select
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from caldrix import log
from caldrix.cli import stderr
from caldrix.cli.stderr import SteadyStderr, steady_stderr


@contextmanager
def pipe_as_stderr(monkeypatch: pytest.MonkeyPatch, *, blocking: bool = True) -> Iterator[int]:
    """The end of a pipe that takes what is written to stderr."""
    reader, writer = os.pipe()
    os.set_blocking(writer, blocking)
    with os.fdopen(writer, "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield reader
    os.close(reader)


def read_all(reader: int) -> tuple[threading.Thread, list[bytes]]:
    found: list[bytes] = []

    def main() -> None:
        while data := os.read(reader, 65536):
            found.append(data)

    thread = threading.Thread(target=main)
    thread.start()
    return thread, found


def test_lines_come_out_in_order_and_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipe_as_stderr(monkeypatch) as reader:
        before = sys.stderr
        log.status("before")
        with steady_stderr():
            assert sys.stderr is not before
            assert sys.stderr.fileno() == before.fileno()
            assert not sys.stderr.isatty()
            for i in range(100):
                log.status(f"{i} \u00e9\x1b")
            print("of others", file=sys.stderr, flush=True)
        assert sys.stderr is before
        log.status("after")
        lines = os.read(reader, 65536).decode().splitlines()
    middle = [f"caldrix: {i} \\xe9\\x1b" for i in range(100)]
    assert lines == ["caldrix: before", *middle, "of others", "caldrix: after"]


def fill(writer: int) -> int:
    """Until the pipe takes no more; returns how much it took."""
    is_blocking, n_bytes = os.get_blocking(writer), 0
    os.set_blocking(writer, False)
    while True:
        try:
            n_bytes += os.write(writer, b"." * 4095 + b"\n")
        except BlockingIOError:
            os.set_blocking(writer, is_blocking)
            return n_bytes


@pytest.mark.parametrize("blocking", [True, False])
def test_a_reader_that_sleeps_loses_lines_and_is_told_how_many(
    monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    monkeypatch.setattr(stderr, "MAX_WAITING", 300)
    n_waits = 0

    def counted(*lists: list[int]) -> object:
        nonlocal n_waits
        n_waits += 1
        return select.select(*lists)

    monkeypatch.setattr(stderr, "select", types.SimpleNamespace(select=counted))
    with pipe_as_stderr(monkeypatch, blocking=blocking) as reader:
        n_bytes = fill(sys.stderr.fileno())
        with steady_stderr():
            for i in range(1000):
                log.status(f"line {i}")
            while not (blocking or n_waits):  # the thread may not have had its turn
                time.sleep(0.001)
            thread, found = read_all(reader)
            while b"line 299" not in b"".join(found):
                assert thread.is_alive()
            log.status("back again")
        sys.stderr.close()
        thread.join(5)
    *kept, told, last = b"".join(found)[n_bytes:].decode().splitlines()
    assert kept == [f"caldrix: line {i}" for i in range(len(kept))]
    assert 300 <= len(kept) <= 301  # one is with the thread
    assert told == f"caldrix: {1000 - len(kept)} lines are lost: nobody read stderr"
    assert last == "caldrix: back again"
    assert (n_waits > 0) is not blocking  # or else the thread would spin


def test_a_reader_that_never_wakes_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stderr, "CLOSE_S", 0.01)
    with pipe_as_stderr(monkeypatch) as reader:
        fill(sys.stderr.fileno())
        with steady_stderr():
            log.status("line")
        thread, _ = read_all(reader)  # lets the thread end
        sys.stderr.close()
        thread.join(5)


def test_a_reader_that_is_gone_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with steady_stderr():
            log.status("nobody hears this")
            steady = sys.stderr
            assert isinstance(steady, SteadyStderr)
        assert not steady._thread.is_alive()


@pytest.mark.parametrize("stream", [None, "captured"])
def test_without_a_stderr_of_the_system_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, stream: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if stream is None:
        monkeypatch.setattr(sys, "stderr", None)
    before = sys.stderr
    with steady_stderr():
        assert sys.stderr is before
        log.status("said")
    if stream:
        assert capsys.readouterr().err == "caldrix: said\n"
