"""What is packed and what is not, the layout file and what can happen to it.

Whatever happens, the weights are there in the end, bit for bit, and one line says why it took what
it took.
"""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray

from caldrix import native, storage
from caldrix.compile import packing as packer
from caldrix.compile.bf16 import to_bf16
from caldrix.compile.packing import Packed, Packing, pack, packable
from caldrix.formats.checkpoint import Checkpoint
from caldrix.formats.safetensors import read_file

ROOT = Path(__file__).resolve().parents[2]
PIECES = 3 * packer.PIECE  # values of a tensor that several threads share


def normal(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def odd_bits(*shape: int) -> NDArray[np.uint16]:
    """Every exponent as often as any other: no block can be packed."""
    return np.random.default_rng(3).integers(0, 65536, shape, dtype=np.uint16)


TENSORS: dict[str, NDArray[Any]] = {
    "wide": tiny.bf16_bits(normal(1, PIECES // 1024 + 1, 1024)),
    "narrow": tiny.bf16_bits(normal(2, 5, 24)),
    "odd": odd_bits(2, 512),
    "full": normal(4, 3, 256),
    "half": normal(5, 3, 256).astype(np.float16),
    "last": tiny.bf16_bits(normal(6, 7, 256)),
}


class Case:
    """A checkpoint, a directory for layout files, and what was said."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "model" / "model.safetensors"
        self.path.parent.mkdir()
        tiny.write_safetensors(self.path, TENSORS)
        self.directory: Path | None = folder / "layout"
        self.said: list[str] = []

    def checkpoint(self) -> Checkpoint:
        return read_file(self.path)

    def pack(self, convert_f32: bool = False) -> Packed:
        checkpoint = self.checkpoint()
        tensors = packable(checkpoint.tensors.values(), convert_f32)
        return pack(checkpoint, tensors, 2, Packing(self.directory, self.said.append))

    def files(self) -> list[Path]:
        """What is kept beside the lock."""
        assert self.directory is not None
        return sorted(path for path in self.directory.iterdir() if path.name != "lock")


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def check(packed: Packed, *names: str) -> None:
    """Just these were packed, and what decodes is what the file holds."""
    assert list(packed.places) == list(names)
    for name, place in packed.places.items():
        want = TENSORS[name]
        want = to_bf16(want) if want.dtype == np.float32 else want
        raw = memoryview(packed.arena)[place.offset : place.end]
        bits = native.decode(place.dtype.id, raw, want.size).view(np.uint32) >> 16
        np.testing.assert_array_equal(bits.reshape(want.shape), want)
        assert place.offset % 64 == 0


def test_bf16_with_whole_blocks_and_few_odd_exponents_is_packed(case: Case) -> None:
    check(case.pack(), "wide", "last")
    assert case.said[0].startswith("packed 3.2 MB of weights as 2.4 MB of planes in ")
    assert case.said[0].endswith("1 of 3 matrices stay as they are: odd exponents")
    assert case.said[1] == f"weights mapped from {case.files()[0]} (2.5 MB)"
    assert len(case.said) == 2


def test_f32_that_becomes_bf16_is_packed_too(case: Case) -> None:
    check(case.pack(convert_f32=True), "wide", "full", "last")
    check(case.pack(convert_f32=False), "wide", "last")
    assert len(case.files()) == 2  # one for each choice


def test_the_second_start_maps_what_the_first_has_made(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = case.pack()
    raw = bytes(first.arena)
    monkeypatch.setattr(native, "pack_planes", None)
    case.said.clear()
    second = case.pack()
    check(second, "wide", "last")
    assert (second.path, bytes(second.arena)) == (first.path, raw)
    assert case.said == [f"weights mapped from {first.path} (2.5 MB)"]


def test_without_a_directory_it_is_made_in_memory(case: Case) -> None:
    case.directory = None
    packed = case.pack()
    check(packed, "wide", "last")
    assert packed.path is None
    assert packed.size_bytes == packed.places["last"].end
    assert len(case.said) == 1


def test_threads_change_nothing(case: Case) -> None:
    case.directory = None
    checkpoint = case.checkpoint()
    tensors = packable(checkpoint.tensors.values(), convert_f32=True)
    made = {
        bytes(pack(checkpoint, tensors, threads, Packing(None, case.said.append)).arena)
        for threads in (1, 2, 7)
    }
    assert len(made) == 1


# --- a layout file that is of no use --------------------------------------------------------------


def damage(path: Path, kind: str) -> None:
    raw = bytearray(path.read_bytes())
    if kind == "cut":
        del raw[-1000:]
    elif kind == "magic":
        raw[0] ^= 1
    elif kind == "table":
        raw[-20] ^= 1
    path.write_bytes(b"" if kind == "empty" else raw)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cut", "cut short or damaged"),
        ("magic", "not a layout file"),
        ("table", "damaged: its table does not have the digest in its head"),
        ("empty", "the file is empty"),
    ],
)
def test_a_damaged_file_is_made_again_with_one_line_that_says_so(
    case: Case, kind: str, words: str
) -> None:
    path = case.pack().path
    assert path is not None
    whole = path.read_bytes()
    damage(path, kind)
    case.said.clear()
    check(case.pack(), "wide", "last")
    assert case.said[0].startswith(f"{path}: {words}")
    assert case.said[0].endswith("; packing the weights again")
    assert len(case.said) == 3
    assert path.read_bytes() == whole


def test_one_of_other_weights_is_made_again(case: Case) -> None:
    before = case.pack().path
    changed = TENSORS | {"last": TENSORS["last"] ^ 1}
    tiny.write_safetensors(case.path, changed)
    case.said.clear()
    packed = case.pack()
    assert case.said[0].endswith(
        "the weights have changed since it was made; packing the weights again"
    )
    assert packed.path == before
    place = packed.places["last"]
    got = native.decode(place.dtype.id, memoryview(packed.arena)[place.offset : place.end], 7 * 256)
    np.testing.assert_array_equal(got.view(np.uint32) >> 16, changed["last"].ravel())
    assert case.files() == [before]


def test_a_table_of_other_tensors_is_made_again(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "_file_name", lambda checkpoint, tensors: "same.layout")
    case.pack(convert_f32=True)
    case.said.clear()
    check(case.pack(convert_f32=False), "wide", "last")
    assert "it holds 'full' in another form; packing the weights again" in case.said[0]


# --- a directory that is of no use ----------------------------------------------------------------


def in_memory(case: Case) -> str:
    """Packs; what was said of why nothing is kept."""
    case.said.clear()
    packed = case.pack()
    check(packed, "wide", "last")
    assert packed.path is None
    assert len(case.said) == 2
    start = "--weight-codec planes: kept in memory only: "
    assert case.said[0].startswith(start)
    return case.said[0].removeprefix(start)


def test_a_directory_that_cannot_be_made(case: Case, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    case.directory = tmp_path / "file" / "layout"
    assert in_memory(case) == f"cannot use {case.directory}: Not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_cannot_be_written(case: Case, tmp_path: Path) -> None:
    case.directory = tmp_path / "closed"
    case.directory.mkdir(0o555)
    assert "Permission denied" in in_memory(case)


def test_a_read_only_file_system(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = case.pack()
    assert kept.path is not None

    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(storage.os, "open", refuse)  # the lock
    check(case.pack(), "wide", "last")  # what is there already needs no lock
    kept.path.unlink()
    assert in_memory(case).endswith("Read-only file system")


def test_too_little_space_is_told_with_both_numbers(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "free_space", lambda path: 2_000_000)
    why = in_memory(case)
    assert "needs 2.5 MB of disk and" in why
    assert why.endswith("has 2.0 MB left")
    assert case.files() == []


def test_a_disk_that_fills_up_meanwhile(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def write(descriptor: int, data: memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data) // 2  # less than was asked for, as disks nearly full do

    monkeypatch.setattr(packer.os, "pwrite", write)
    assert in_memory(case).startswith("the disk is full: ")
    assert case.files() == []


# --- several at once ------------------------------------------------------------------------------


def test_of_several_at_once_one_packs_and_the_others_wait(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = threading.Event()

    def slowly(tensors: Any, threads: int, write: Any, really: Any = packer._pack_all) -> Any:
        inside.set()
        time.sleep(0.2)
        return really(tensors, threads, write)

    monkeypatch.setattr(packer, "_pack_all", slowly)
    results: list[Packed] = []
    threads = [threading.Thread(target=lambda: results.append(case.pack())) for _ in range(4)]
    threads[0].start()
    assert inside.wait(30)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for packed in results:
        check(packed, "wide", "last")
    assert sum(line.startswith("packed") for line in case.said) == 1
    assert case.said.count("waiting for another caldrix to pack") == 3


PROCESS = """
import sys, time
from pathlib import Path
from caldrix.compile import packing
from caldrix.formats.safetensors import read_file

if sys.argv[3] == "slow":
    def write(descriptor, data, offset):
        print("writing", flush=True)
        time.sleep(600)
    packing.os.pwrite = write
checkpoint = read_file(Path(sys.argv[1]))
tensors = packing.packable(checkpoint.tensors.values(), False)
packing.pack(checkpoint, tensors, 1, packing.Packing(Path(sys.argv[2]), print))
"""


def start(case: Case, kind: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS, str(case.path), str(case.directory), kind]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)


def test_one_that_is_killed_leaves_nothing_behind_that_stays(case: Case) -> None:
    killed = start(case, "slow")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "writing\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    assert [path.suffix for path in case.files()] == [".partial"]
    check(case.pack(), "wide", "last")
    assert [path.suffix for path in case.files()] == [".layout"]


def test_processes_that_start_together_all_have_the_weights(case: Case) -> None:
    processes = [start(case, "plain") for _ in range(3)]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum(text.count("packed ") for text in said) == 1
    assert all("weights mapped from" in text for text in said)
    check(case.pack(), "wide", "last")


# --- memory ---------------------------------------------------------------------------------------


def resident(path: Path) -> int:
    """Bytes of the mappings of a file that this process has in memory."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            counts = line.endswith(str(path))
        elif counts and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no /proc")
def test_the_files_own_pages_are_let_go(case: Case) -> None:
    case.directory = None
    checkpoint = case.checkpoint()
    tensors = packable(checkpoint.tensors.values(), convert_f32=False)
    assert sum(tensor.data[::4096].tobytes() != b"" for tensor in tensors) == 3
    assert resident(case.path) > 3_000_000
    packed = pack(checkpoint, tensors, 2, Packing(None, case.said.append))
    assert resident(case.path) < 300_000
    check(packed, "wide", "last")
