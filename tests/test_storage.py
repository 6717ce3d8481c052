"""The cache directory, its locks and its files; the progress line."""

import errno
import os
from pathlib import Path

import own_caches
import pytest

from caldrix import log, progress, storage
from caldrix.errors import RefusedError, TooLargeError
from caldrix.hub import hub_cache

CACHES = [
    ({"CALDRIX_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
    ({"CALDRIX_CACHE_DIR": "~/a"}, "/home/user/a"),
    ({"CALDRIX_CACHE_DIR": "", "XDG_CACHE_HOME": "/b"}, "/b/caldrix"),
    ({"XDG_CACHE_HOME": "relative"}, "/home/user/.cache/caldrix"),
    ({}, "/home/user/.cache/caldrix"),
]
HUB_CACHES = [
    ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
    ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
    ({"HF_HOME": "$HOME/b"}, "/home/user/b/hub"),
    ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ({}, "/home/user/.cache/huggingface/hub"),
]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_caches.use(tmp_path, monkeypatch)
    for name in ("CALDRIX_CACHE_DIR", "HF_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/home/user")


@pytest.mark.parametrize(("environment", "path"), CACHES)
def test_where_the_cache_is(
    bare: None, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], path: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert storage.cache_directory() == Path(path)


@pytest.mark.parametrize(("environment", "path"), HUB_CACHES)
def test_where_the_hub_cache_is(
    bare: None, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], path: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hub_cache.cache_root() == Path(path)


def test_no_home_directory(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(RefusedError, match="set CALDRIX_CACHE_DIR"):
        storage.cache_directory()


def test_a_full_disk_and_a_closed_one_are_told_apart(tmp_path: Path) -> None:
    full = storage.disk_refusal(OSError(errno.ENOSPC, "x"), tmp_path / "not" / "there")
    assert isinstance(full, TooLargeError)
    assert "the disk is full" in str(full)
    closed = storage.disk_refusal(OSError(errno.EROFS, os.strerror(errno.EROFS)), tmp_path)
    assert str(closed) == f"cannot use {tmp_path}: Read-only file system"


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    storage.write_whole(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(TooLargeError):
        storage.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    waited: list[int] = []
    for _ in range(2):
        with (
            pytest.raises(ZeroDivisionError),
            storage.locked(tmp_path / "x", lambda: waited.append(1)),
        ):
            raise ZeroDivisionError
    assert not waited


def test_progress_is_drawn_at_most_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    drawn: list[str] = []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "redraw", drawn.append)
    bar = progress.Progress("x.gguf", 10_000_000)
    bar.erase()
    assert not drawn
    for step in range(21):
        bar.update(step * 500_000)
        now[0] += 0.0625
    bar.erase()
    assert len(drawn) == 11
    assert drawn[4] == "caldrix: x.gguf  50 % of 10.0 MB, 8.0 MB/s"
    assert drawn[-2:] == ["caldrix: x.gguf  100 % of 10.0 MB, 8.0 MB/s", ""]


def test_progress_of_an_unknown_size_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(progress, "redraw", drawn.append)
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0)
    progress.Progress("x", None).update(2_000_000)
    assert drawn[0].startswith("caldrix: x  2.0 MB, ")


def test_the_line_is_redrawn_on_a_terminal_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.redraw("caldrix: x  5 %")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "11")
    log.redraw("caldrix: \x1b[31m  5 %")
    assert capsys.readouterr().err == "\rcaldrix: \\\x1b[K"
    log.redraw("")
    assert capsys.readouterr().err == "\r\x1b[K"
