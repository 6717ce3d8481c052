"""The record of `caldrix bench` as figures and as a table that fits 100 columns.

Owns which limit a speed runs into: decoding reads every weight once a step, so it is judged by
the memory's speed; a prompt is multiplication, so it is judged by the peak of the arithmetic that
its activations use. A fraction is taken within a round; what is shown are medians. Knows nothing of
how a record is made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from caldrix.units import format_seconds, format_size

LIMIT_NAMES = {"read": "memory read", "fma": "f32 multiply-add", "int8": "int8 multiply-add"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One speed of one round: tokens a second, and the part of `limit` that it makes use of."""

    label: str
    per_s: float
    of_limit: float
    limit: str


def figures(model: dict[str, Any], round_: dict[str, Any]) -> list[Figure]:
    """Every speed of a round, in the order of the table."""
    peak = prompt_limit(model)
    limits = {name: limit["per_s"] for name, limit in round_["limits"].items()}
    found = []
    for length, speed in round_["prefill"].items():
        flops = model["row_flops"] + model["out_flops"] / int(length)
        found.append(Figure(f"prompt of {length}", speed, flops * speed / limits[peak], peak))
    reads = model["weight_bytes"] / limits["read"]
    for depth, speed in round_["decode"].items():
        found.append(Figure(f"decode after {depth}", speed, reads * speed, "read"))
    if round_["together"] is not None:
        n = model["n_slots"]
        speed = round_["together"]
        found.append(Figure(f"decode {n} together", speed, reads * speed / n, "read"))
    return found


def prompt_limit(model: dict[str, Any]) -> str:
    """int8 where activations are 8-bit integers, which come with products of 8-bit integers."""
    return "int8" if model.get("activations") == "int8" else "fma"


def table(record: dict[str, Any]) -> str:
    model, runs = record["model"], record["runs"]
    n_rounds = len(runs[0]["rounds"])
    lines = [
        f"{model['name']}: type {model['dtype']}, row {model['row']}, median of"
        f" {n_rounds} round(s)",
        f"a step reads {format_size(model['weight_bytes'])} of weights, a token of a prompt takes"
        f" {model['row_flops'] / 1e9:.3g} GFLOP",
        "",
        f"{'':<22}" + "".join(f"{_threads(run):>16}{'':<20}" for run in runs).rstrip(),
    ]
    lines += [_row(LIMIT_NAMES[name], runs, _limit_cell(name)) for name in LIMIT_NAMES]
    lines.append("")
    labels = [figure.label for figure in figures(model, runs[0]["rounds"][0])]
    lines += [_row(label, runs, _speed_cell(model, i)) for i, label in enumerate(labels)]
    lines.append("")
    if record["start"]:
        first = median(start["first_token_s"] for start in record["start"])
        peak = median(start["peak_rss_bytes"] for start in record["start"])
        lines.append(f"{'start to first token':<22}{format_seconds(first):>16}")
        lines.append(f"{'peak memory of that':<22}{format_size(int(peak)):>16}")
    else:
        lines.append(f"{'peak memory':<22}{format_size(record['peak_rss_bytes']):>16}")
    seen = [round_["others"] for run in runs for round_ in run["rounds"]]
    busy = [part for part in seen if part is not None]
    if busy:
        share = f"{100 * median(busy):.0f} %"
        lines.append(f"{'other work meanwhile':<22}{share:>16}  of the processors")
    sums = sorted({round_["checksum"] for run in runs for round_ in run["rounds"]})
    lines.append(f"{'checksum of tokens':<22}{' '.join(sums):>16}")
    return "\n".join(lines) + "\n"


def _threads(run: dict[str, Any]) -> str:
    return "1 thread" if run["threads"] == 1 else f"{run['threads']} threads"


def _row(
    label: str, runs: list[dict[str, Any]], cell: Callable[[dict[str, Any]], tuple[str, str]]
) -> str:
    cells = [cell(run) for run in runs]
    return (f"{label:<22}" + "".join(f"{value:>16}  {note:<18}" for value, note in cells)).rstrip()


def _limit_cell(name: str) -> Callable[[dict[str, Any]], tuple[str, str]]:
    unit = "GB/s" if name == "read" else "Gop/s"

    def cell(run: dict[str, Any]) -> tuple[str, str]:
        found = [round_["limits"][name] for round_ in run["rounds"]]
        value = median(limit["per_s"] for limit in found) / 1e9
        return f"{value:.1f} {unit}", f"#{found[0]['checksum'][:8]}"

    return cell


def _speed_cell(model: dict[str, Any], index: int) -> Callable[[dict[str, Any]], tuple[str, str]]:
    def cell(run: dict[str, Any]) -> tuple[str, str]:
        found = [figures(model, round_)[index] for round_ in run["rounds"]]
        speed, part = median(f.per_s for f in found), median(f.of_limit for f in found)
        limit = "read" if found[0].limit == "read" else LIMIT_NAMES[found[0].limit].split()[0]
        return f"{speed:.1f} t/s", f"{100 * part:.0f} % of {limit}"

    return cell
