"""What may be done to a model, and what must come of it: the cases of the load-path tests, and the
values and kinds of damage that every format shares.
"""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from load_bases import Base


class Expect(Enum):
    SAME = "same"  # what was changed means nothing: the same scores
    REFUSED = "refused"
    ANY = "any"  # refused, or loaded and sound


class Odd(StrEnum):
    """What may stand in a file's place."""

    DIRECTORY = "directory"
    FIFO = "FIFO"
    LOOP = "link to itself"
    DANGLING = "link to nothing"
    DEVICE = "link to /dev/zero"


@dataclass(frozen=True)
class Case:
    files: dict[str, bytes]
    expect: Expect = Expect.ANY
    note: str = ""
    odd: dict[str, Odd] = field(default_factory=dict)


Mutation = Callable[[random.Random, Base], Case]

FLOATS = [0.0, -0.0, -1.0, 1e-45, 1e-30, 1e-6, 0.5, 1.0, 1.01, 3.0, 1e6, 1e30, 3e38]
FLOATS += [float("inf"), float("-inf"), float("nan")]
COUNTS = [*range(-2, 6), 7, 8, 16, 31, 63, 64, 65, 128, 255, 256, 512, 1000, 1024, 4096, 1 << 20]
COUNTS += [sign * 2**n + d for n in (16, 24, 31, 32, 63, 64) for sign in (1, -1) for d in (-1, 0)]
STRINGS = ["", "a", "llama", "none", "yarn", "gpt2", "t5", "\u0120", "\n", "\x1b[31m", "0", "../x"]
STRINGS += ["{{ 1 / 0 }}", "{% for %}", "{{" * 200, "\U0001f600" * 100, "a" * 5000, "<s>", "linear"]


# f16, bf16 and f32: infinities, NaN, the largest, the smallest, zero
ODD_NUMBERS = [b"\x00\x7c", b"\x00\xfc", b"\x01\x7e", b"\x80\x7f", b"\x80\xff", b"\xc0\x7f"]
ODD_NUMBERS += [struct.pack("<f", x) for x in (*FLOATS, 1e38, -1e38)] + [
    b"\xff\x7b",
    b"\xff",
    b"\0",
]


def spoilt_data(rng: random.Random, data: bytes, size: int) -> bytes:
    """Weights with odd numbers in them: `size` bytes an item, whose first two are often a scale."""
    raw = bytearray(data)
    items = len(raw) // size
    for _ in range(rng.choice([1, 1, 5, items])):
        at = rng.randrange(items) * size
        match rng.randrange(4):
            case 0:
                raw[at : at + size] = rng.randbytes(size)
            case 1:
                raw[at : at + size] = (rng.choice(ODD_NUMBERS) * size)[:size]
            case 2:
                raw[at] ^= 1 << rng.randrange(8)
            case 3:
                number = rng.choice(ODD_NUMBERS)[:2]
                raw[at : at + len(number)] = number[: len(raw) - at]
    return bytes(raw)


def cut(rng: random.Random, base: Base) -> Case:
    """One file shorter, longer, empty or of zeros."""
    path = rng.choice(sorted(base.files))
    raw = base.files[path]
    match rng.randrange(6):
        case 0:
            raw = raw[: rng.randrange(len(raw))]
        case 1:
            raw = raw[: -rng.randint(1, 64)]
        case 2:
            raw = raw + rng.randbytes(rng.randint(1, 200))
        case 3:
            raw = b""
        case 4:
            raw = bytes(len(raw))
        case 5:
            kind = rng.choice(list(Odd))
            return Case(base.changed({path: None}), odd={path: kind}, note=f"{path} is a {kind}")
    return Case(base.changed({path: raw}), note=path)
