"""Whole numbers for activations: which linear ops take them, and the op that makes them.

A pass between lowering and memory. A linear op all of whose weights are of types that have codes
to multiply (native/quant/quants.h lists them) reads its input as int8 groups, which an op of its
own writes just before; every other op stays as it is.
"""

from collections.abc import Callable

from caldrix import native
from caldrix.compile.lower import Lowered, LoweredOp
from caldrix.models.graph import Value, Weight

GROUP = 32  # activations with one scale: struct cx_int8_group


def quantize_inputs(lowered: Lowered, takes_int8: Callable[[Weight], bool]) -> None:
    """Rewrites `lowered`; `takes_int8` says it of one matrix."""
    ops: list[LoweredOp] = []
    for op in lowered.ops:
        matrices = (*op.weights, *(part.weight for part in op.parts))
        if op.kind in ("linear", "gated_linear") and all(map(takes_int8, matrices)):
            x, groups = op.reads[0], as_groups(op.reads[0])
            ops.append(LoweredOp("quantize", op.rows, op.layer, (x,), (groups,)))
            op.kind += "_int8"
            op.reads = (groups, *op.reads[1:])
        ops.append(op)
    lowered.ops = ops


def as_groups(x: Value) -> Value:
    """`x` in groups; its width is still counted in floats."""
    width = x.width // GROUP * native.ENUMS["CX_INT8_GROUP_FLOATS"]
    return Value(f"{x.name} as int8", width, x.rows)
