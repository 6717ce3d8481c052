"""Spoils a good file in many seeded ways and opens each: `hostile.py KIND SEED COUNT FOLDER`.

Runs as a process of its own, so that its address space can be capped at what it has before the
first case plus the file's size and 64 MB, and each case at two seconds. A case passes when it is
refused with one line that names the file, or when every tensor that opens is the original's. Prints
the failures, then how many were refused and how many opened, as JSON.
"""

import json
import mmap
import random
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from model_files import (
    ARRAY,
    F64,
    STRING,
    U8,
    Written,
    header,
    key,
    row,
    sample_gguf,
    sample_safetensors,
    text,
    u32,
    u64,
)

from caldrix.errors import RefusedError
from caldrix.formats.checkpoint import Checkpoint
from caldrix.formats.gguf import open_gguf
from caldrix.formats.safetensors import read_file

EXTRA_BYTES = 64_000_000
SECONDS = 2.0

EDGES = [0, 1, 2, 3, 4, 5, 8, 9, 12, 13, 16, 30, 31, 32, 33, 39, 64, 99, 255, 256, 1000, 10**6]
EDGES += [2**n + d for n in (16, 20, 31, 32, 33, 40, 60, 61, 62, 63, 64) for d in (-1, 0, 1)]


def number(rng: random.Random, old: int, size: int) -> bytes:
    """A hostile value for a field of `size` bytes."""
    near = old + rng.choice([-32, -1, 1, 32, 64, old])
    value = rng.choice([rng.choice(EDGES), near, rng.getrandbits(8 * size)])
    return (value % 2 ** (8 * size)).to_bytes(size, "little")


def spoil_bytes(rng: random.Random, raw: bytearray, end: int) -> None:
    """Damage that knows no format, in the first `end` bytes or to the file's length."""
    at = rng.randrange(end)
    match rng.randrange(7):
        case 0:
            del raw[rng.randrange(len(raw)) :]
        case 1:
            raw[at] ^= 1 << rng.randrange(8)
        case 2:
            raw[at] = rng.randrange(256)
        case 3:
            raw[at:at] = rng.randbytes(rng.randint(1, 40))
        case 4:
            del raw[at : at + rng.randint(1, 40)]
        case 5:
            source, length = rng.randrange(end), min(8, end - at)
            raw[at : at + length] = raw[source : source + length]
        case 6:
            raw += rng.randbytes(rng.randint(1, 100))


def spoil_gguf(rng: random.Random, good: Written) -> bytes:
    raw = bytearray(good.raw)
    data_start = next(start for kind, start, _ in good.fields if kind == "data")
    if rng.random() < 0.3:
        spoil_bytes(rng, raw, data_start)
        return bytes(raw)
    for _ in range(rng.choice([1, 1, 1, 2])):
        kinds = {kind for kind, _, _ in good.fields} - {"padding", "data", "string"}
        kind = rng.choice(sorted(kinds))
        fields = [field for field in good.fields if field[0] == kind]
        _, start, size = rng.choice(fields)
        if kind in ("key", "tensor name"):  # another field's name, whole or in part: duplicates
            _, other, length = rng.choice(fields)
            name = bytes(good.raw[other : other + length])
            if rng.random() < 0.5 and length != size:
                raw[start - 8 : start + size] = u64(length) + name
                break  # what follows has moved
            raw[start : start + size] = (name + bytes(size))[:size]
        else:
            old = int.from_bytes(raw[start : start + size], "little")
            raw[start : start + size] = number(rng, old, size)
    return bytes(raw)


def spoil_safetensors(rng: random.Random, good: bytes) -> bytes:
    length = int.from_bytes(good[:8], "little")
    head, data = good[8 : 8 + length], good[8 + length :]
    match rng.randrange(4):
        case 0:
            raw = bytearray(good)
            spoil_bytes(rng, raw, 8 + length)
            return bytes(raw)
        case 1:
            return number(rng, length, 8) + head + data
        case 2:  # a token of the header in another's place
            tokens = [b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"0", b"-1", b"1e9", b"NaN"]
            tokens += [b"F32", b"I8", b"null", b"[" * 3000, b"9" * 30, b'"dtype":"F64",', b"\0"]
            at = rng.randrange(length)
            head = head[:at] + rng.choice(tokens) + head[at + rng.randrange(3) :]
        case 3:
            head = spoil_entry(rng, head)
    return u64(len(head)) + head + data


def spoil_entry(rng: random.Random, head: bytes) -> bytes:
    """One field of one tensor, or a name, given another value of the right kind."""
    entries = json.loads(head)
    name = rng.choice([name for name in entries if name != "__metadata__"])
    entry = entries[name]
    match rng.randrange(4):
        case 0:
            entry["dtype"] = rng.choice(["F64", "F32", "U8", "F4", "BF16", "F16", "C128", "", None])
        case 1:
            if entry["shape"]:
                at = rng.randrange(len(entry["shape"]))
                entry["shape"][at] = rng.choice([*EDGES, -1, 1.0, entry["shape"][at] + 1])
            else:
                entry["shape"] = rng.choice([[0], [2], [2**62, 4], [1] * 20])
        case 2:
            at = rng.randrange(2)
            near = entry["data_offsets"][at] + rng.choice([-4, -1, 1, 2, 64])
            entry["data_offsets"][at] = rng.choice([near, near, *EDGES])
        case 3:  # the same name for two tensors, which a dict cannot hold
            other = rng.choice([name for name in entries if name != "__metadata__"])
            return head.replace(json.dumps(name).encode(), json.dumps(other).encode())
    return json.dumps(entries).encode()


# name -> dtype name, shape, bytes
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def tensors_of(checkpoint: Checkpoint) -> Tensors:
    return {name: (t.dtype.name, t.shape, bytes(t.data)) for name, t in checkpoint.tensors.items()}


def differs(found: Tensors, good: Tensors) -> str | None:
    """Why what opened is not what was written.

    Nothing in a file can betray another name, another type of the same size, another shape of no
    elements or a last tensor smaller by less than the padding: binding the weights does.
    """
    if len(found) > len(good):
        return "more tensors than were written"
    for name, (dtype, shape, data) in found.items():
        known = good.get(name)
        if known is None:
            if data not in [d for _, _, d in good.values()]:
                return f"{name!r} holds bytes of no tensor"
        elif shape == known[1] or not data:
            sizes = {SIZES.get(dtype, dtype), SIZES.get(known[0], known[0])}
            if data != known[2] or (data and len(sizes) > 1):
                return f"{name!r} is another {dtype}, written as {known[0]}"
        elif not (known[2].startswith(data) and 0 < len(known[2]) - len(data) < 32):
            return f"{name!r} is {dtype} {shape}, written as {known[:2]}"
    return None


# Types that take as many bits an element as another.
SIZES = {"f16": "16 bits", "bf16": "16 bits"} | dict.fromkeys(["q4_0", "iq4_nl", "q4_k"], "4.5")


def open_all_of_gguf(path: Path) -> Checkpoint:
    opened = open_gguf(path)
    for name in opened.metadata:
        try:
            opened.metadata[name]
        except RefusedError as error:  # one key that does not decode spoils no tensor
            check_message(str(error), path)
    return opened.checkpoint


def check_message(message: str, path: Path) -> None:
    assert path.name in message, f"the message does not name the file: {message!r}"
    assert message.isprintable(), f"the message is no plain line: {message!r}"
    assert len(message) < 600, f"a message of {len(message)} characters"


def cap_memory(n_bytes: int) -> None:
    """Caps the address space at what is mapped now plus `n_bytes`; a sanitizer needs its own."""
    if "libasan" in Path("/proc/self/maps").read_text():
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * mmap.PAGESIZE + n_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class TooSlow(Exception):
    pass


def stop(*_: object) -> None:
    raise TooSlow


# --- large files, each made to cost more than its own size --------------------------------------


def large_gguf(case: str, file: BinaryIO) -> None:
    """Files of 100 MB or so; most of it zeros that take no room on the disk."""
    size = 100_000_000
    zeros = {
        "array of bytes": u32(U8) + u64(size),
        "array of doubles": u32(F64) + u64(size // 8),
        "array of empty strings": u32(STRING) + u64(size // 8),
    }
    if case in zeros:
        file.write(header(0, 1) + key("tokenizer.ggml.tokens", ARRAY, zeros[case]))
        file.truncate(file.tell() + size)
    elif case == "wide string":
        wide = "\N{GRINNING FACE}".encode() * 20_000_000
        file.write(header(0, 1) + key("general.name", STRING, text(wide)))
    elif case == "wide strings":
        wide = text("\N{GRINNING FACE}".encode() + bytes(99)) * 600_000
        file.write(header(0, 1) + key("k", ARRAY, u32(STRING) + u64(600_000) + wide))
    elif case == "keys":
        file.write(header(0, 65536))
        file.write(b"".join(key(f"{i:05d}", U8, b"\1") for i in range(65536)))
    elif case == "tensors":
        wide = "\N{GRINNING FACE}" * 60
        rows = [row(f"{i:05d}{wide}", [1, 1, 1, 1], 1, 32 * i) for i in range(65536)]
        file.write(header(65536, 0) + b"".join(rows))
        file.truncate((file.tell() + 31) // 32 * 32 + 32 * 65536)


LARGE_GGUF = ["array of bytes", "array of doubles", "array of empty strings", "wide string"]
LARGE_GGUF += ["wide strings", "keys", "tensors"]


def many(count: int, name_ends: str = "") -> bytes:
    entry = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    return ("{" + ",".join(f'"{i:05d}{name_ends}":{entry}' for i in range(count)) + "}").encode()


LARGE_HEADERS: dict[str, Callable[[], bytes]] = {
    "blanks": lambda: b"{" + b" " * 99_000_000,
    "brackets": lambda: b'{"a":' + b"[" * 99_000_000,
    "braces": lambda: b'{"a":' + b"{" * 99_000_000,
    "lists": lambda: b'{"a":{"shape":[' + b"[]," * 33_000_000,
    "numbers": lambda: b'{"a":{"shape":[' + b"1," * 49_000_000 + b"1]}}",
    "name": lambda: b'{"' + b"a" * 99_000_000 + b'":{}}',
    "escapes": lambda: b'{"' + b"\\u0041" * 16_000_000 + b'":{}}',
    "metadata": lambda: b'{"__metadata__":{"a":"' + b"\\n" * 49_000_000 + b'"}}',
    "metadata keys": lambda: b'{"__metadata__":{' + b'"":"",' * 16_000_000 + b'"":""}}',
    "tensors": lambda: many(65536, "\N{GRINNING FACE}" * 60),
    "more tensors": lambda: many(1_000_000),
}


def run_large(kind: str, case: str, path: Path) -> int:
    """Opens one large file under the cap, and says what became of it."""
    opener: Callable[[Path], Checkpoint] = open_all_of_gguf if kind == "gguf" else read_file
    opener(path.with_name(f"{kind}-good"))  # imports done, before the cap
    cap_memory(path.stat().st_size + EXTRA_BYTES)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 5 * SECONDS)
    try:
        print(len(opener(path).tensors), "tensors")
    except RefusedError as error:
        check_message(str(error), path)
        print("refused:", str(error).partition(": ")[2])
    return 0


def run(kind: str, seed: int, count: int, folder: Path) -> int:
    path = folder / f"{kind}-{seed}"
    opener: Callable[[Path], Checkpoint]
    if kind == "gguf":
        opener, written = open_all_of_gguf, sample_gguf()
        raw = bytes(written.raw)
    else:
        opener, raw = read_file, sample_safetensors()
    path.write_bytes(raw)
    good = tensors_of(opener(path))
    cap_memory(len(raw) + EXTRA_BYTES)
    signal.signal(signal.SIGALRM, stop)
    outcome = {"refused": 0, "opened": 0, "same": 0}
    failures = 0
    for case in range(count):
        rng = random.Random(f"{kind} {seed} {case}")
        spoilt = spoil_gguf(rng, written) if kind == "gguf" else spoil_safetensors(rng, raw)
        path.unlink()
        path.write_bytes(spoilt)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            problem = differs(tensors_of(opener(path)), good)
            outcome["same" if spoilt == raw else "opened"] += 1
        except RefusedError as error:
            check_message(str(error), path)
            problem = None
            outcome["refused"] += 1
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if problem:
            failures += 1
            print(f"{kind} {seed} {case}: {problem}")
    print(json.dumps(outcome))
    return 1 if failures else 0


if __name__ == "__main__":
    kind, seed, count, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    if seed == "large":
        sys.exit(run_large(kind, count, folder))
    sys.exit(run(kind, int(seed), int(count), folder))
