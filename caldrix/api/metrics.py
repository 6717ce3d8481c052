"""GET /metrics: what the server counts, in Prometheus' text format.

Owns the families, their names and labels, and the rendering. Scraping reads numbers that are kept
anyway and waits for nothing. Counters only grow; durations are seconds, sizes bytes.
"""

import builtins
import math
import os
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

Labels = tuple[tuple[str, str], ...]

TOKENS = tuple(float(2**i) for i in range(18))


class Counter:
    """A number for each set of label values, which only grows."""

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help
        self._labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *values: str) -> None:
        self._values[values] = self._values.get(values, 0.0) + amount

    @property
    def value(self) -> float:
        """Of a counter without labels."""
        return self._values[()]

    @property
    def values(self) -> Mapping[tuple[str, ...], float]:
        """By the values of its labels."""
        return self._values

    def lines(self, always: Labels) -> list[str]:
        return [
            sample(self.name, (*always, *zip(self._labels, values, strict=True)), value)
            for values, value in self._values.items()
        ]


class Histogram:
    """Counts of values up to each bound, for each set of label values."""

    def __init__(
        self, name: str, help: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.help = help
        self._bounds = tuple(bounds)
        self._labels = tuple(labels)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        if not labels:
            self._start(())

    def _start(self, values: tuple[str, ...]) -> None:
        self._counts[values] = [0] * (len(self._bounds) + 1)
        self._sums[values] = 0.0

    def observe(self, value: float, *values: str) -> None:
        if values not in self._counts:
            self._start(values)
        self._counts[values][bisect_left(self._bounds, value)] += 1
        self._sums[values] += value

    def lines(self, always: Labels) -> list[str]:
        found: list[str] = []
        for values, counts in self._counts.items():
            labels = (*always, *zip(self._labels, values, strict=True))
            found += histogram_lines(self.name, labels, self._bounds, counts, self._sums[values])
        return found

    @property
    def sum(self) -> float:
        """Of all values, whatever their labels."""
        return math.fsum(self._sums.values())

    def total_lines(self, name: str, labels: Labels) -> list[str]:
        """All label sets added up, under another name; none while there is no value."""
        if not self._counts:
            return []
        counts = [builtins.sum(column) for column in zip(*self._counts.values(), strict=True)]
        return histogram_lines(name, labels, self._bounds, counts, self.sum)


def histogram_lines(
    name: str, labels: Labels, bounds: Sequence[float], counts: Sequence[int], sum: float
) -> list[str]:
    """One histogram; `counts` are those between the bounds, the last above all of them."""
    found, total = [], 0
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        total += count
        found.append(sample(f"{name}_bucket", (*labels, ("le", _number(bound))), total))
    return [*found, sample(f"{name}_sum", labels, sum), sample(f"{name}_count", labels, total)]


def sample(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def family(name: str, kind: str, help: str, lines: Iterable[str]) -> list[str]:
    """One family with its head; nothing at all while it has no sample."""
    lines = list(lines)
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}", *lines] if lines else []


def gauge(name: str, help: str, value: float, labels: Labels = ()) -> list[str]:
    return family(name, "gauge", help, [sample(name, labels, value)])


_STARTED = time.time()


def process_lines() -> list[str]:
    """The standard families about the process; those that this system can tell."""
    lines = gauge(
        "process_start_time_seconds", "Start of the process in Unix seconds", round(_STARTED, 3)
    )
    cpu = "process_cpu_seconds_total"
    used = [sample(cpu, (), round(time.process_time(), 3))]
    lines += family(cpu, "counter", "CPU seconds used by the process", used)
    if sys.platform == "linux":
        lines += _linux_lines()
    return lines


def _linux_lines() -> list[str]:
    """Nothing while no file can be opened: the rest is what one wants to see just then."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
        n_open = len(os.listdir("/proc/self/fd"))
    except OSError:
        return []
    size = pages * os.sysconf("SC_PAGE_SIZE")
    return [
        *gauge("process_resident_memory_bytes", "Resident memory", size),
        *gauge("process_open_fds", "Open file descriptors", n_open),
    ]
