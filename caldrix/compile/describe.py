"""The plan as text for a person: one line an op, and the memory.

Layers that look alike are shown once with their range. Owns layout only; numbers come from the
emitter's notes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from caldrix.compile.plan import OpNote
from caldrix.units import format_size

if TYPE_CHECKING:
    from caldrix.compile.program import CompileOptions, Sizes

_COLUMNS = "{:<9} {:<13} {:<28} {:<22} {:>10} {:>12}"


def describe(
    notes: Sequence[OpNote], sizes: "Sizes", options: "CompileOptions", vocab_size: int
) -> str:
    """Ops with shapes, kernels and the types they read, weight bytes a step and flops a row; then
    the memory."""
    lines = [_COLUMNS.format("layer", "op", "shape", "kernel", "bytes/step", "flops/row")]
    for label, group in _groups(notes):
        lines += [_line(label, note) for note in group]
    n_bytes = sum(note.weight_bytes for note in notes)
    flops = sum(note.flops_per_row for note in notes)
    planes = f" planes {format_size(sizes.planes)}," if sizes.planes else ""
    lines.append(_COLUMNS.format("all", "", "", "", format_size(n_bytes), f"{flops:,}"))
    lines += [
        "",
        f"{len(notes)} lines of ops, vocabulary {vocab_size}, {options.n_slots} slot(s) of"
        f" {options.context} tokens, up to {options.max_rows} rows a step",
        f"threads {options.threads}, row {options.cpu_isa}, type {options.dtype},"
        f" activations {options.activations}",
        f"memory {format_size(sizes.total)}: weight files {format_size(sizes.files)} (mapped),"
        f"{planes} made weights {format_size(sizes.weights)}, cache {format_size(sizes.cache)},"
        f" activations {format_size(sizes.activations)}",
    ]
    return "\n".join(lines)


def _line(label: str, note: OpNote) -> str:
    size = format_size(note.weight_bytes) if note.weight_bytes else "-"
    flops = f"{note.flops_per_row:,}" if note.flops_per_row else "-"
    return _COLUMNS.format(
        label, note.kind, note.shape, f"{note.kind}/{note.types}", size, flops
    ).rstrip()


def _groups(notes: Sequence[OpNote]) -> list[tuple[str, list[OpNote]]]:
    """Runs of notes by layer; equal neighbouring layers become one group `0-29`."""
    runs: list[tuple[int | None, list[OpNote]]] = []
    for note in notes:
        if not runs or runs[-1][0] != note.layer:
            runs.append((note.layer, []))
        runs[-1][1].append(note)
    groups: list[tuple[str, list[OpNote]]] = []
    at = 0
    while at < len(runs):
        layer, first = runs[at]
        end = at + 1
        while (
            layer is not None
            and end < len(runs)
            and runs[end][0] is not None
            and _shapes(runs[end][1]) == _shapes(first)
        ):
            end += 1
        label = "-" if layer is None else str(layer)
        if end > at + 1:
            label += f"-{runs[end - 1][0]}"
        groups.append((label, first))
        at = end
    return groups


def _shapes(notes: Sequence[OpNote]) -> list[tuple[str, str, str]]:
    return [(note.kind, note.shape, note.types) for note in notes]
