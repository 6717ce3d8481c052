"""The record of tools/bench as a plain table, as markdown for a page and as a chart.

Owns what is made of a record: medians of rounds, and ratios to the peer and parts of limits that
are taken within a round first. What a speed is judged by is caldrix/cli/bench_table.py's. Measures
nothing. tools/sync_docs.py writes docs/benchmarks.md from docs/benchmarks/*.json by this alone.
"""

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from caldrix.cli.bench_table import LIMIT_NAMES, Figure, figures
from caldrix.units import format_size

FORMAT = 1
PEER = "llama.cpp"
QUIET = 0.05  # of the processors: other work up to here changes no ratio that is shown
DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One program's medians in one row; `ratio` to the peer and `part` of a limit where known."""

    value: float
    ratio: float | None = None
    part: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured of every program. `unit` is t/s, where more is better, or s or MB."""

    label: str
    unit: str
    columns: dict[str, Column]


def read(path: Path) -> Record:
    """A record of this format; ends the program for anything else."""
    try:
        record: Record = json.loads(path.read_text(encoding="utf8"))
        found = record["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"bench: {path}: not a record of tools/bench ({type(error).__name__})")
    if found != FORMAT:
        sys.exit(f"bench: {path}: format {found!r}; this version reads {FORMAT}")
    return record


# --- rows ----------------------------------------------------------------------------------------


def names_of(cell: Record) -> list[str]:
    """The peer first, then the variants in their order."""
    measured = {name for round_ in cell["rounds"] for name in round_}
    known = [name for name in cell.get("programs", {}) if name != PEER] or sorted(measured - {PEER})
    return [name for name in (PEER, *known) if name in measured]


def _judged(cell: Record, round_: dict[str, Any], name: str) -> list[Figure]:
    """A program's speeds in a round. The peer is judged by the weights as the file has them, which
    is the most that a variant reads, by the f32 peak, and by the limits beside the first variant.
    """
    if name != PEER:
        return figures(cell["programs"][name]["model"], round_[name])
    variants = [other for other in names_of(cell) if other != PEER]
    beside = next((round_[other]["limits"] for other in variants if other in round_), None)
    if beside is None:
        return []
    models = [cell["programs"][other]["model"] for other in variants]
    most = max(models, key=lambda model: int(model["weight_bytes"]))
    return figures(most | {"activations": "f32"}, {"limits": beside, **round_[PEER]})


def rows(cell: Record) -> list[Row]:
    """Speeds, then the memory of the process."""
    by_label: dict[str, list[dict[str, Figure]]] = {}
    for round_ in cell["rounds"]:
        found: dict[str, dict[str, Figure]] = {}
        for name in round_:
            for figure in _judged(cell, round_, name):
                found.setdefault(figure.label, {})[name] = figure
        for label, by_name in found.items():
            by_label.setdefault(label, []).append(by_name)
    made = []
    for label, rounds in by_label.items():
        speeds = [{n: f.per_s for n, f in by_name.items()} for by_name in rounds]
        parts = [{n: f.of_limit for n, f in by_name.items()} for by_name in rounds]
        made.append(Row(label, "t/s", _columns(cell, speeds, parts)))
    memory = [
        {n: r["peak_rss_bytes"] / 1e6 for n, r in round_.items()} for round_ in cell["rounds"]
    ]
    return [*made, Row("peak memory", "MB", _columns(cell, memory))] if memory else made


def start_rows(start: Record) -> list[Row]:
    rounds = start["rounds"]
    first = [{n: r["first_token_s"] for n, r in round_.items()} for round_ in rounds]
    memory = [{n: r["peak_rss_bytes"] / 1e6 for n, r in round_.items()} for round_ in rounds]
    if not rounds:
        return []
    return [
        Row("start to first token", "s", _columns(start, first)),
        Row("peak memory of that", "MB", _columns(start, memory)),
    ]


def _columns(
    cell: Record, rounds: list[dict[str, float]], parts: list[dict[str, float]] | None = None
) -> dict[str, Column]:
    made = {}
    for name in names_of(cell):
        values = [values[name] for values in rounds if name in values]
        ratios = [v[name] / v[PEER] for v in rounds if name in v and PEER in v and name != PEER]
        shares = [part[name] for part in parts or () if name in part]
        if values:
            made[name] = Column(
                median(values),
                median(ratios) if ratios else None,
                median(shares) if shares else None,
            )
    return made


def limits(cell: Record) -> str:
    """`memory read 17.9 GB/s, ...`: medians over every program of every round."""
    said = []
    for name, title in LIMIT_NAMES.items():
        found = [
            r["limits"][name]["per_s"] for x in cell["rounds"] for r in x.values() if "limits" in r
        ]
        unit = "GB/s" if name == "read" else "Gop/s"
        said.append(f"{title} {median(found) / 1e9:.1f} {unit}")
    return ", ".join(said)


def others(cell: Record) -> float | None:
    """The part of all processors that other programs took meanwhile, where the system says."""
    found = [r["others"] for x in cell["rounds"] for r in x.values() if r.get("others") is not None]
    return median(found) if found else None


def others_said(cell: Record) -> str:
    part = others(cell)
    return "" if part is None else f", other work {100 * part:.0f} % of the processors"


def warning(record: Record) -> str:
    """What a reader must know first of a machine that was busy, or nothing."""
    parts = [others(measured) for _, _, measured, _ in sections(record)]
    most = max((part for part in parts if part is not None), default=0.0)
    if most <= QUIET:
        return ""
    return (
        f"Other work took up to {100 * most:.0f} % of the processors during this run. Programs"
        " suffer from that unequally: on a quiet machine the ratios are others."
    )


def title(cell: Record) -> str:
    threads = "1 thread" if cell["threads"] == 1 else f"{cell['threads']} threads"
    return f"{cell['model']}, {threads}"


def sections(record: Record) -> Iterator[tuple[str, str, Record, list[Row]]]:
    """(title, what was measured beside it, the cell or start, its rows) of all that has rounds."""
    for cell in record["cells"]:
        if cell["rounds"]:
            n = len(cell["rounds"])
            yield title(cell), f"{n} round(s); {limits(cell)}{others_said(cell)}", cell, rows(cell)
    for start in record["starts"]:
        if start["rounds"]:
            yield (
                f"{title(start)}: whole programs",
                f"{len(start['rounds'])} round(s){others_said(start)}",
                start,
                start_rows(start),
            )


def slower(record: Record) -> list[str]:
    """What some variant does less well than the peer: `m, 2 threads, prompt of 512: raw 0.91`."""
    found = []
    for name, _, _, made in sections(record):
        for row in made:
            for program, column in row.columns.items():
                if column.ratio is None:
                    continue
                if column.ratio < 1 if row.unit == "t/s" else column.ratio > 1:
                    found.append(f"{name}, {row.label}: {program} {column.ratio:.2f}")
    return found


def refused(record: Record) -> list[str]:
    return [
        f"{title(cell)}: {name}: {reason}"
        for cell in record["cells"]
        for name, reason in cell["refused"].items()
    ]


def number(value: float) -> str:
    """Three digits or more."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


# --- text and markdown ---------------------------------------------------------------------------


def text(record: Record) -> str:
    """Plain tables."""
    lines = [f"{record['command']}  ({record['date']}, caldrix {record['caldrix']})"]
    lines += textwrap.wrap(warning(record), 100)
    for name, beside, cell, made in sections(record):
        lines += ["", name, f"  {beside}"]
        programs = names_of(cell)
        lines.append(
            f"{'':<24}" + "".join(f"{program:>14}{'':<14}" for program in programs).rstrip()
        )
        for row in made:
            cells = [_text_cell(row.columns.get(program)) for program in programs]
            lines.append(f"{row.label + ', ' + row.unit:<24}{''.join(cells)}".rstrip())
    lines += ["", *(f"refused: {line}" for line in refused(record))] if refused(record) else []
    return "\n".join(lines) + "\n"


def _text_cell(column: Column | None) -> str:
    if column is None:
        return f"{'-':>14}{'':<14}"
    ratio = "" if column.ratio is None else f"{column.ratio:.2f}x"
    part = "" if column.part is None else f"{100 * column.part:.0f} %"
    return f"{number(column.value):>14} {ratio:>6} {part:>5} "


def markdown(record: Record) -> str:
    """Tables for a page, in levels below a heading of the page."""
    machine = next((c["machine"] for c in record["cells"] if "machine" in c), None)
    version = next(
        (c["programs"][PEER]["version"] for c in record["cells"] if PEER in c.get("programs", {})),
        None,
    )
    day = record["date"][:10]
    lines = [f"`{record['command']}`", ""]
    if machine:
        memory = machine["memory_bytes"]
        room = f", {format_size(memory)} of memory" if memory else ""
        lines[1:] = [
            "",
            f"{day}, caldrix {record['caldrix']}{', ' + version if version else ''};"
            f" {machine['cpu']}, {machine['cpus']} processors{room}, {machine['system']}.",
            "",
        ]
    if warning(record):
        lines += [f"**{warning(record)}**", ""]
    for name, beside, cell, made in sections(record):
        lines += [f"**{name}** ({beside})", "", *_markdown_table(cell, made), ""]
    lines += _markdown_list("Refused by the model or the machine:", refused(record))
    if version:
        below = slower(record)
        lines += _markdown_list(f"Less good than {PEER} in this run:", below) or [
            f"Nothing in this run is less good than {PEER}.",
            "",
        ]
    return "\n".join(lines)


def _markdown_table(cell: Record, made: list[Row]) -> list[str]:
    programs = names_of(cell)
    heads, dashes = [""], ["---"]
    for program in programs:
        more = ["of limit"] if program == PEER else ["ratio", "of limit"]
        heads += [program, *more]
        dashes += ["---"] * (1 + len(more))
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join(dashes)}|"]
    for row in made:
        cells = [f"{row.label}, {row.unit}"]
        for program in programs:
            column = row.columns.get(program)
            value = "" if column is None else number(column.value)
            ratio = "" if column is None or column.ratio is None else f"{column.ratio:.2f}"
            part = "" if column is None or column.part is None else f"{100 * column.part:.0f} %"
            cells += [value, part] if program == PEER else [value, ratio, part]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _markdown_list(head: str, items: list[str]) -> list[str]:
    return [head, "", *(f"- {item}" for item in items), ""] if items else []


# --- the chart -----------------------------------------------------------------------------------

WIDTH, LEFT, LINE, BAR = 820, 330, 16, 11  # pixels
STYLE = """
text { font: 12px sans-serif; fill: #1f2328 } .head { font-weight: bold }
.left { text-anchor: end } .page { fill: #ffffff }
.axis { stroke: #59636e; stroke-dasharray: 3 3 }
.bar { fill: #0969da } .bar1 { fill: #1a7f37 } .bar2 { fill: #9a6700 } .bar3 { fill: #8250df }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .page { fill: #0d1117 } .axis { stroke: #9198a1 }
.bar { fill: #4493f8 } .bar1 { fill: #3fb950 } .bar2 { fill: #d29922 } .bar3 { fill: #ab7df8 } }
"""


def bars(record: Record) -> Iterator[tuple[str, list[tuple[str, int, float]]]]:
    """(title, [(label, the variant's index, length)]): ratios to the peer, or parts of the limit
    where there is no peer."""
    for name, _, cell, made in sections(record):
        variants = [program for program in names_of(cell) if program != PEER]
        has_peer = PEER in names_of(cell)
        found = []
        for row in made:
            for index, program in enumerate(variants):
                column = row.columns.get(program)
                if column is None or row.unit != "t/s":
                    continue
                length = column.ratio if has_peer else column.part
                if length is not None:
                    found.append((f"{row.label}, {program}", index, length))
        if found:
            yield name, found


def svg(records: list[Record]) -> str:
    """Bars of speed: 1 is the peer, or the limit. One drawing for all records."""
    groups = [group for record in records for group in bars(record)]
    longest = max((length for _, items in groups for *_, length in items), default=1.0)
    scale = (WIDTH - LEFT - 60) / max(longest, 1.0)
    peer = any(PEER in names_of(cell) for record in records for cell in record["cells"])
    meaning = f"speed over that of {PEER}" if peer else "speed as a part of its limit"
    body, y = [_svg_text(10, 20, meaning, "head")], 36
    for name, items in groups:
        y += 8
        body.append(_svg_text(10, y + BAR, name, "head"))
        y += LINE + 2
        for label, index, length in items:
            style = "bar" if index == 0 else f"bar{(index - 1) % 3 + 1}"
            wide = length * scale
            body += [
                _svg_text(LEFT - 8, y + 10, label, "left"),
                f'<rect class="{style}" x="{LEFT}" y="{y}" width="{wide:.1f}" height="{BAR}"/>',
                _svg_text(LEFT + wide + 5, y + 10, f"{length:.2f}", ""),
            ]
            y += LINE
    x, height = f"{LEFT + scale:.1f}", y + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{meaning}">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}"/>',
            *body,
            f'<line class="axis" x1="{x}" y1="30" x2="{x}" y2="{y}"/>',
            "</svg>\n",
        ]
    )


def _svg_text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y}">{escape(text)}</text>'


# --- the page ------------------------------------------------------------------------------------


def kept() -> list[Path]:
    """The records that the page shows, the newest first."""
    return sorted(DOCS.glob("*.json"), reverse=True)


def page() -> str:
    """What docs/benchmarks.md shows of every kept record."""
    parts = []
    for path in kept():
        name = path.stem
        parts += [f"### {name}", "", f"![{name}](benchmarks/{name}.svg)", "", markdown(read(path))]
    return "\n".join(parts)


def charts() -> dict[Path, Callable[[], str]]:
    """The chart beside each kept record, by its path."""
    return {path.with_suffix(".svg"): lambda path=path: svg([read(path)]) for path in kept()}
