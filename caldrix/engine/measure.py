"""How fast a model steps, for `caldrix bench` and for whatever it is compared with.

Owns what is stepped and timed: prompts of several lengths, and tokens one by one after several
depths of context, with token ids made up, so that no tokenizer is needed. What is run leaves a
checksum, the same in every round. Needs nothing but the standard library, so that another program
can be put behind `Steps` in a Python that has no caldrix built.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from caldrix.cgroups import read

if TYPE_CHECKING:
    from caldrix.compile.program import Program

ROOT = Path("/")


class Steps(Protocol):
    """A loaded model. Slots are contexts apart from each other."""

    vocab_size: int
    max_rows: int  # of one step
    n_slots: int

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        out_rows: Sequence[int],
    ) -> list[int]:
        """Row i is tokens[i] at positions[i] of slots[i], over whatever stood there and after;
        returns the most likely next token of each of out_rows, which are ascending."""


class ProgramSteps:
    """A compiled program, picking its tokens natively as a greedy reply does."""

    def __init__(self, program: "Program") -> None:
        from caldrix.native import Sampling

        self.vocab_size = program.vocab_size
        self.max_rows = program.max_rows
        self.n_slots = program.n_slots
        self._program = program
        self._greedy = Sampling()

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        out_rows: Sequence[int],
    ) -> list[int]:
        greedy = [self._greedy] * len(out_rows)
        picks = self._program.step(tokens, positions, slots, out_rows, greedy)
        return [pick.token for pick in picks]


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured: prompts of `lengths` tokens, and `n_new` tokens one by one after each of
    `depths` tokens of context."""

    lengths: tuple[int, ...] = (32, 128, 512)
    depths: tuple[int, ...] = (32, 512)
    n_new: int = 32

    @property
    def context(self) -> int:
        """The positions it takes."""
        return max(*self.lengths, *(depth + self.n_new for depth in self.depths))


@dataclass(slots=True)
class Speeds:
    """Tokens a second, by length of the prompt or depth of the context; `together` in all, for the
    model's slots at the least of the depths, where it has more than one."""

    prefill: dict[int, float] = field(default_factory=dict)
    decode: dict[int, float] = field(default_factory=dict)
    together: float | None = None
    checksum: int = 0


def token_at(position: int, vocab_size: int) -> int:
    """The made-up token of a prompt's position."""
    return (100 + position % 997) % vocab_size


class Others:
    """What other programs take of the processors from here on: figures taken beside them are worth
    less. `own_s` says how many seconds of processor time this program has used."""

    def __init__(self, own_s: Callable[[], float] = time.process_time, root: Path = ROOT) -> None:
        self._own_s, self._root = own_s, root
        self._began = self._now()

    def part(self) -> float | None:
        """0 to 1, of all processors; None where the system does not say."""
        began, now = self._began, self._now()
        if began is None or now is None:
            return None
        busy, total, own = (b - a for a, b in zip(began, now, strict=True))
        return min(max(busy - own, 0.0) / total, 1.0) if total > 0 else None

    def _now(self) -> tuple[float, float, float] | None:
        """Seconds so far: busy and in all, of all processors, and of this program."""
        first = read(self._root / "proc/stat").partition("\n")[0].split()
        if len(first) < 9 or first[0] != "cpu" or not all(map(str.isdecimal, first[1:9])):
            return None
        ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in first[1:9]]
        idle = ticks[3] + ticks[4]  # waiting for a disk is idle too
        return sum(ticks) - idle, sum(ticks), self._own_s()


class Stopwatch:
    """Times one model's steps; `checksum` takes in every token that comes out."""

    def __init__(self, model: Steps) -> None:
        self.model = model
        self.checksum = 0

    def prompt(self, start: int, end: int, slots: Sequence[int] = (0,)) -> float:
        """Tokens `start` to `end` of the made-up prompt in each slot; the seconds it took."""
        model, began = self.model, time.perf_counter()
        for slot in slots:
            for at in range(start, end, model.max_rows):
                places = range(at, min(at + model.max_rows, end))
                ids = [token_at(place, model.vocab_size) for place in places]
                token = model.step(ids, places, [slot] * len(ids), [len(ids) - 1])[0]
            self._add(token)
        return time.perf_counter() - began

    def decode(self, depth: int, n_new: int, slots: Sequence[int] = (0,)) -> float:
        """`n_new` tokens of each slot, all slots in one step, after `depth` tokens of context."""
        n = len(slots)
        ids = [token_at(depth + slot, self.model.vocab_size) for slot in slots]
        rows = list(range(n))
        began = time.perf_counter()
        for place in range(depth, depth + n_new):
            ids = self.model.step(ids, [place] * n, slots, rows)
            for token in ids:
                self._add(token)
        return time.perf_counter() - began

    def _add(self, token: int) -> None:
        self.checksum = (self.checksum * 31 + token + 1) % (2**61 - 1)


def measure_speeds(model: Steps, work: Work) -> Speeds:
    """One round. The context that decoding needs is what the prompts before it left."""
    watch, speeds = Stopwatch(model), Speeds()
    watch.prompt(0, 1)  # brings the threads to life
    filled = 0
    for length in work.lengths:
        speeds.prefill[length] = length / watch.prompt(0, length)
        filled = max(filled, length)
    for depth in sorted(work.depths, reverse=True):  # each writes over what lies past its depth
        if depth > filled:
            watch.prompt(filled, depth)
        speeds.decode[depth] = work.n_new / watch.decode(depth, work.n_new)
        filled = depth
    if model.n_slots > 1:
        slots, depth = range(model.n_slots), min(work.depths)
        watch.prompt(0, depth, slots)
        speeds.together = len(slots) * work.n_new / watch.decode(depth, work.n_new, slots)
    speeds.checksum = watch.checksum
    return speeds
