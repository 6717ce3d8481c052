"""The telemetry log: lines come out whole, and a disk that fails or lags stops nobody."""

import errno
import os
import threading
from pathlib import Path

import pytest

from caldrix.engine import line_log
from caldrix.engine.line_log import LineLog
from caldrix.errors import RefusedError


def test_lines_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    log = LineLog(str(path), "--log")
    for i in range(1000):
        log.write(f"line {i} \u00e9\ud800")
    log.close()
    assert path.read_text("utf8").splitlines() == [
        "before", *(f"line {i} \u00e9\\ud800" for i in range(1000))
    ]  # fmt: skip
    assert log.n_lost == 0


@pytest.mark.parametrize("path", ["/nonexistent/dir/t.jsonl", "/", "a\0b"])
def test_a_file_that_cannot_be_written_is_refused_by_name(path: str) -> None:
    with pytest.raises(RefusedError, match="--telemetry-log ") as caught:
        LineLog(path, "--telemetry-log")
    assert "\n" not in str(caught.value)


def test_a_pipe_without_a_reader_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RefusedError):
        LineLog(str(tmp_path / "pipe"), "--log")


def test_a_full_disk_loses_lines_says_so_once_and_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, room = os.write, [7]  # bytes that fit
    done = threading.Semaphore(0)

    def limited(file: int, data: bytes) -> int:
        if not room[0]:
            done.release()
            raise OSError(errno.ENOSPC, "No space left on device")
        n = write(file, data[: room[0]])
        room[0] -= n
        return n

    monkeypatch.setattr(line_log.os, "write", limited)
    log = LineLog(str(tmp_path / "log"), "--log")
    for line in ["one", "second", "third"]:
        log.write(line)
    for _ in range(2):
        assert done.acquire(timeout=5)
    room[0] = 100
    log.write("fourth")
    log.close()
    assert (tmp_path / "log").read_text() == "one\nsec\nfourth\n"
    assert log.n_lost == 2
    assert capsys.readouterr().err == (
        "caldrix: --log: no space left on device; records are lost until it can be written again\n"
    )


def test_a_disk_that_hangs_holds_up_neither_a_write_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, free = threading.Event(), threading.Event()

    def hang(file: int, data: bytes) -> int:
        hangs.set()
        return len(data) if free.wait(5) else 0

    monkeypatch.setattr(line_log, "_MAX_WAITING", 3)
    monkeypatch.setattr(line_log.os, "write", hang)
    log = LineLog(str(tmp_path / "log"), "--log")
    log.write("line")
    assert hangs.wait(5)
    for _ in range(9):
        log.write("line")
    log.close(timeout_s=0.01)
    assert log.n_lost == 6
    free.set()
    log.close()
