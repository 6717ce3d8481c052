"""Graph to ops: which nodes one kernel does together, in the order they run.

Fuses q/k/v (and any linears of one input) into one linear, gate and up with their activation, a
linear with the residual that follows it, and head norms, rotation and cache writes into one op.
Decides nothing about memory: ops name values, and `alias` says which values share a buffer
because an op works in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from caldrix import native
from caldrix.errors import EngineError
from caldrix.models.graph import Graph, Node, Op, Rows, Value, Weight

MAX_PARTS = native.ENUMS["CX_LINEAR_PARTS"]


@dataclass(frozen=True, slots=True)
class LinearPart:
    """One weight of a linear: y[n] = x . weight^T + bias."""

    weight: Weight
    bias: Weight | None
    y: Value


@dataclass(slots=True)
class LoweredOp:
    """One record of the plan to be. `reads` and `writes` drive liveness; the rest is the op's
    own."""

    kind: str  # the name after CX_OP_, lower case
    rows: Rows
    layer: int | None
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    weights: tuple[Weight, ...] = ()
    parts: tuple[LinearPart, ...] = ()
    residual: Value | None = None
    norms: tuple[Weight | None, Weight | None] = (None, None)  # q, k of rope_store


@dataclass(slots=True)
class Lowered:
    """The ops in order, and which values stand for another's buffer."""

    ops: list[LoweredOp]
    angles: Value
    logits: Value
    alias: dict[str, Value] = field(default_factory=dict)

    def root(self, value: Value) -> Value:
        """The value whose buffer `value` lives in."""
        while value.name in self.alias:
            value = self.alias[value.name]
        return value


def lower(graph: Graph) -> Lowered:
    """The ops of `graph`. Raises EngineError for a pattern that no kernel does."""
    angles = Value("angles", graph.attention.rope_dim, Rows.STEP)
    lowered = Lowered([], angles, graph.logits)
    last_use = _last_uses(graph.nodes)
    at = 0
    while at < len(graph.nodes):
        at += _lower_at(graph.nodes, at, lowered, last_use)
    lowered.ops.insert(
        1, LoweredOp("rope_angles", Rows.STEP, None, (), (angles,))
    )  # after embed: read by every layer
    return lowered


def _last_uses(nodes: Sequence[Node]) -> dict[str, int]:
    return {value.name: i for i, node in enumerate(nodes) for value in node.inputs}


def _lower_at(nodes: Sequence[Node], at: int, lowered: Lowered, last_use: dict[str, int]) -> int:
    """Lowers the node at `at` with those it takes along; returns how many that were."""
    node = nodes[at]
    if node.op is Op.LINEAR:
        return _linear(nodes, at, lowered, last_use)
    if node.op in (Op.HEAD_NORM, Op.ROPE):
        return _rope_store(nodes, at, lowered)
    kinds = {
        Op.EMBED: "embed",
        Op.RMS_NORM: "rms_norm",
        Op.ATTENTION: "attention",
        Op.SELECT: "select_rows",
    }
    if node.op not in kinds or node.output is None:
        raise EngineError(f"no kernel for {node.op.value} after {nodes[at - 1].op.value}")
    lowered.ops.append(
        LoweredOp(
            kinds[node.op],
            node.output.rows,
            node.layer,
            node.inputs,
            (node.output,),
            node.weights,
        )
    )
    return 1


def _linear(nodes: Sequence[Node], at: int, lowered: Lowered, last_use: dict[str, int]) -> int:
    x = nodes[at].inputs[0]
    group = [nodes[at]]
    while (
        len(group) < MAX_PARTS
        and at + len(group) < len(nodes)
        and nodes[at + len(group)].op is Op.LINEAR
        and nodes[at + len(group)].inputs == (x,)
    ):
        group.append(nodes[at + len(group)])
    follower = nodes[at + len(group)] if at + len(group) < len(nodes) else None
    outputs = tuple(node.output for node in group if node.output)
    if follower and follower.op is Op.ACT_MUL and follower.inputs == outputs and follower.output:
        weights = tuple(node.weights[0] for node in group)
        lowered.ops.append(
            LoweredOp("gated_linear", x.rows, group[0].layer, (x,), (follower.output,), weights)
        )
        return len(group) + 1
    parts = tuple(
        LinearPart(node.weights[0], node.weights[1] if len(node.weights) > 1 else None, y)
        for node, y in zip(group, outputs, strict=True)
    )
    op = LoweredOp("linear", x.rows, group[0].layer, (x,), outputs, parts=parts)
    lowered.ops.append(op)
    if len(group) == 1 and follower and follower.op is Op.ADD and outputs[0] in follower.inputs:
        _absorb_residual(op, follower, at + 1, lowered, last_use)
        return 2
    return len(group)


def _absorb_residual(
    op: LoweredOp, add: Node, at: int, lowered: Lowered, last_use: dict[str, int]
) -> None:
    """Turns a linear and the add behind it into one op, in the residual's buffer if it ends
    there."""
    part, total = op.parts[0], add.output
    assert total is not None
    residual = add.inputs[0] if add.inputs[1] == part.y else add.inputs[1]
    op.parts = (LinearPart(part.weight, part.bias, total),)
    op.residual = residual
    op.reads, op.writes = (*op.reads, residual), (total,)
    if last_use[residual.name] == at:
        lowered.alias[total.name] = residual


def _rope_store(nodes: Sequence[Node], at: int, lowered: Lowered) -> int:
    """Head norms and rotations of q and k, and the cache write that ends them."""
    source: dict[str, Value] = {}
    norms: dict[str, Weight] = {}
    end = at
    while nodes[end].op in (Op.HEAD_NORM, Op.ROPE):
        node = nodes[end]
        assert node.output is not None
        root = source.get(node.inputs[0].name, node.inputs[0])
        source[node.output.name] = root
        lowered.alias[node.output.name] = root
        if node.op is Op.HEAD_NORM:
            norms[root.name] = node.weights[0]
        end += 1
    store = nodes[end]
    if store.op is not Op.STORE:
        raise EngineError(f"no kernel for a rotation followed by {store.op.value}")
    k, v = source[store.inputs[0].name], store.inputs[1]
    q = next(root for root in source.values() if root != k)
    lowered.ops.append(
        LoweredOp(
            "rope_store",
            Rows.STEP,
            store.layer,
            (q, k, v, lowered.angles),
            (q,),
            norms=(norms.get(q.name), norms.get(k.name)),
        )
    )
    return end - at + 1
