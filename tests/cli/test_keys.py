"""Where the keys of a server come from, and what is refused or warned of without showing one."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from caldrix.cli import keys
from caldrix.cli.keys import server_keys
from caldrix.cli.parse import parse
from caldrix.errors import RefusedError

Writes = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALDRIX_API_KEY", raising=False)


@pytest.fixture
def written(tmp_path: Path) -> Writes:
    """The path of a file with these bytes."""

    def write(data: bytes, mode: int = 0o600) -> str:
        path = tmp_path / "keys"
        path.write_bytes(data)
        path.chmod(mode)
        return str(path)

    return write


def given(*flags: str) -> tuple[str, ...]:
    return server_keys(parse("serve", ["m", *flags]))


def test_without_one_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given() == ()
    monkeypatch.setenv("CALDRIX_API_KEY", "")
    assert given() == ()


def test_all_sources_add_up(monkeypatch: pytest.MonkeyPatch, written: Writes) -> None:
    monkeypatch.setenv("CALDRIX_API_KEY", " of-the-environment\n")
    path = written(b"\xef\xbb\xbfone\r\n\n  two words \t\n\r\nthr\xc3\xa9\xc3\xa0\n# four\n a ")
    flags = ["--api-key", "a", "--api-key-file", "other", "--api-key", " b ", "--api-key-file"]
    found = given(*flags, path)
    assert found == ("a", "b", "one", "two words", "thréà", "# four", "of-the-environment")


def test_a_pipe_will_do(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    os.close(writer)
    assert given("--api-key-file", f"/dev/fd/{reader}") == ("one", "two")
    os.close(reader)
    assert capfd.readouterr().err == ""


def test_a_named_pipe_is_nobody_elses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    path.chmod(0o644)
    writer = threading.Thread(target=path.write_text, args=["one"])
    writer.start()
    assert given("--api-key-file", str(path)) == ("one",)
    writer.join()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "holds no key"),
        (b"\n \r\n\t\n", "holds no key"),
        (b"\xef\xbb\xbf", "holds no key"),
        (b"secret\n" * 10_000, "is over 64 KiB"),
        (b"secret\nsecr\xfft\n", "no UTF-8 text"),
        ("secret\n".encode("utf-16"), "no UTF-8 text"),
        (b"\nsecret\nsec\0ret\n", "line 3: a key must not hold control characters"),
        (b"\x7fELF\x02\x01", "line 1: a key must not hold control characters"),
    ],
)
def test_a_file_of_something_else_is_refused(written: Writes, data: bytes, words: str) -> None:
    path = written(data)
    with pytest.raises(RefusedError) as caught:
        given("--api-key-file", path)
    message = str(caught.value)
    assert message.startswith(f"--api-key-file '{path}': ")
    assert words in message
    assert "\n" not in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("path", "words"),
    [("/no/such/file", "no such file"), ("/", "is a directory"), ("/dev/zero", "over 64 KiB")],
)
def test_a_file_that_cannot_be_read_is_refused(path: str, words: str) -> None:
    with pytest.raises(RefusedError, match=f"^--api-key-file '{path}': .*{words}"):
        given("--api-key-file", path)


def test_a_key_of_the_environment_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, words in ((" ", "must not be empty"), ("sec\nret", "control characters")):
        monkeypatch.setenv("CALDRIX_API_KEY", value)
        with pytest.raises(RefusedError, match=f"^CALDRIX_API_KEY: a key .*{words}"):
            given()


@pytest.mark.parametrize(
    ("mode", "is_mine", "warns"),
    [
        (0o600, True, False),
        (0o400, True, False),
        (0o640, True, True),
        (0o604, True, True),
        (0o602, True, True),
        (0o640, False, False),
        (0o644, False, True),
    ],
)
def test_a_file_that_others_can_read_is_warned_of(
    written: Writes,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    mode: int,
    is_mine: bool,
    warns: bool,
) -> None:
    path = written(b"secret", mode)
    me = os.geteuid() if is_mine else os.geteuid() + 1
    monkeypatch.setattr(keys.os, "geteuid", lambda: me)
    assert given("--api-key-file", path) == ("secret",)
    err = capfd.readouterr().err
    assert ("warning" in err) is warns
    if warns:
        assert err.startswith(f"caldrix: warning: --api-key-file '{path}' is open to other users")
        assert f"(mode {mode:04o})" in err
        assert err.count("\n") == 1
        assert "secret" not in err
