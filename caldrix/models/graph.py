"""The typed graph that a model file builds: one node an operation, symbolic row tensors, no loop
over tokens.

A graph is straight-line: nodes stand in the order they run. A value is one row per token (`width`
f32 numbers); which rows a node runs over is said by its value's `rows`. Weights are named as
Hugging Face checkpoints name them; where they lie and of what type they are is the compiler's
business. Nothing here computes.
"""

from dataclasses import dataclass, field
from enum import Enum


class Op(Enum):
    """What a node does; the shapes of its inputs, output and weights."""

    EMBED = "embed"  # -> [dim]; weight [vocab, dim]
    RMS_NORM = "rms_norm"  # [dim] -> [dim]; weight [dim]
    LINEAR = "linear"  # [k] -> [n]; weight [n, k], optional bias [n]
    HEAD_NORM = "head_norm"  # [heads * head_dim] -> same; weight [head_dim], RMS over each head
    ROPE = "rope"  # [heads * head_dim] -> same; rotates by position
    STORE = "store"  # (k, v) -> nothing; writes the layer's cache at the row's position
    ATTENTION = "attention"  # q [heads * head_dim] -> same; reads the layer's cache
    ACT_MUL = "act_mul"  # (gate [n], up [n]) -> [n]; silu(gate) * up
    ADD = "add"  # (a, b) -> same
    SELECT = "select"  # [dim] -> [dim]; only the rows whose logits are wanted


class Rows(Enum):
    """Which rows of a step a value has: all of them, or those whose logits are wanted."""

    STEP = "step"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Value:
    """A row tensor: f32[rows, width]."""

    name: str
    width: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the checkpoint, by its Hugging Face name."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `layer` is None outside the stack of layers."""

    op: Op
    inputs: tuple[Value, ...]
    output: Value | None
    weights: tuple[Weight, ...] = ()
    layer: int | None = None
    heads: int = 0


class RopeStyle(Enum):
    """Which two numbers of a head turn together: (i, i + d/2), or (2i, 2i + 1)."""

    HALF = "half"
    ADJACENT = "adjacent"


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What every attention layer of a model shares."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_dim: int
    rope_style: RopeStyle
    scale: float
    norm_eps: float


@dataclass(slots=True)
class Graph:
    """A whole model: `nodes` in order, the last one's output being the logits."""

    hidden_size: int
    vocab_size: int
    num_layers: int
    attention: AttentionShape
    norm_eps: float
    nodes: list[Node] = field(default_factory=list)

    @property
    def logits(self) -> Value:
        """The value of the last node: [output rows, vocab]."""
        output = self.nodes[-1].output
        assert output is not None
        return output

    def weights(self) -> list[Weight]:
        """Every weight once, in the order of first use."""
        seen: dict[str, Weight] = {}
        for node in self.nodes:
            for weight in node.weights:
                seen.setdefault(weight.name, weight)
        return list(seen.values())


class GraphBuilder:
    """Appends nodes and names their values; the functions of blocks.py and the model files call
    it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.layer: int | None = None
        self._count = 0

    def _value(self, stem: str, width: int, rows: Rows) -> Value:
        self._count += 1
        return Value(f"{stem}.{self._count}", width, rows)

    def _add(
        self,
        op: Op,
        inputs: tuple[Value, ...],
        output: Value | None,
        weights: tuple[Weight, ...] = (),
        heads: int = 0,
    ) -> None:
        self.graph.nodes.append(Node(op, inputs, output, weights, self.layer, heads))

    def embed(self, weight: str) -> Value:
        g = self.graph
        out = self._value("embed", g.hidden_size, Rows.STEP)
        self._add(Op.EMBED, (), out, (Weight(weight, (g.vocab_size, g.hidden_size)),))
        return out

    def rms_norm(self, x: Value, weight: str) -> Value:
        out = self._value("norm", x.width, x.rows)
        self._add(Op.RMS_NORM, (x,), out, (Weight(weight, (x.width,)),))
        return out

    def linear(self, x: Value, n: int, weight: str, bias: str | None = None) -> Value:
        out = self._value("linear", n, x.rows)
        weights: tuple[Weight, ...] = (Weight(weight, (n, x.width)),)
        if bias:
            weights += (Weight(bias, (n,)),)
        self._add(Op.LINEAR, (x,), out, weights)
        return out

    def head_norm(self, x: Value, heads: int, weight: str) -> Value:
        out = self._value("head_norm", x.width, x.rows)
        shape = (self.graph.attention.head_dim,)
        self._add(Op.HEAD_NORM, (x,), out, (Weight(weight, shape),), heads)
        return out

    def rope(self, x: Value, heads: int) -> Value:
        out = self._value("rope", x.width, x.rows)
        self._add(Op.ROPE, (x,), out, (), heads)
        return out

    def store(self, k: Value, v: Value) -> None:
        self._add(Op.STORE, (k, v), None)

    def attention(self, q: Value) -> Value:
        out = self._value("attention", q.width, q.rows)
        self._add(Op.ATTENTION, (q,), out)
        return out

    def act_mul(self, gate: Value, up: Value) -> Value:
        out = self._value("act_mul", gate.width, gate.rows)
        self._add(Op.ACT_MUL, (gate, up), out)
        return out

    def add(self, a: Value, b: Value) -> Value:
        out = self._value("add", a.width, a.rows)
        self._add(Op.ADD, (a, b), out)
        return out

    def select(self, x: Value) -> Value:
        out = self._value("select", x.width, Rows.OUTPUT)
        self._add(Op.SELECT, (x,), out)
        return out
