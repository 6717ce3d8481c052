"""Drives a Program directly, without an engine: chunks, all rows, greedy replies.

What the golden and row-invariance tests share. A row is (token, position, slot).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from caldrix.compile.program import Program

Row = tuple[int, int, int]


def step(program: Program, rows: Sequence[Row], out: Sequence[int]) -> npt.NDArray[np.float32]:
    """One step; the logits of the rows at indices `out`, copied."""
    tokens, positions, slots = ([row[i] for row in rows] for i in range(3))
    program.step(tokens, positions, slots, list(out), None)
    return program.logits[: len(out)].copy()


def last_logits(
    program: Program, ids: Sequence[int], slot: int = 0, chunk: int = 64
) -> npt.NDArray[np.float32]:
    """Computes `ids` at `slot` in chunks; the logits of the last row."""
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        rows = [(token, start + i, slot) for i, token in enumerate(part)]
        last = start + chunk >= len(ids)
        logits = step(program, rows, [len(part) - 1] if last else [])
    return logits[0]


def all_logits(program: Program, ids: Sequence[int], slot: int = 0) -> npt.NDArray[np.float32]:
    """The logits of every row, max_out rows a step."""
    out = []
    for start in range(0, len(ids), program.max_out):
        part = ids[start : start + program.max_out]
        rows = [(token, start + i, slot) for i, token in enumerate(part)]
        out.append(step(program, rows, range(len(part))))
    return np.concatenate(out)


def greedy(program: Program, prompt: Sequence[int], n: int, slot: int = 0) -> list[int]:
    """n greedy tokens after `prompt`, one step each."""
    logits = last_logits(program, prompt, slot)
    reply = [int(logits.argmax())]
    while len(reply) < n:
        at = len(prompt) + len(reply) - 1
        reply.append(int(step(program, [(reply[-1], at, slot)], [0])[0].argmax()))
    return reply
