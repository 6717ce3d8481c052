"""Emission: lowered ops to the flat plan that native/plan checks and runs.

One record of CX_OP_BYTES an op, behind a head of the same size; every field is one of
native/include/ops.h, packed by cffi so that a mismatch is an error here. Also keeps, beside each
record, what a person wants to know of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from caldrix import native
from caldrix.compile.lower import Lowered, LoweredOp
from caldrix.compile.memory import ArenaPlan, CachePlan, stride_of
from caldrix.compile.weights import NO_REF, Ref, WeightPlan
from caldrix.formats.dtypes import DType, by_id
from caldrix.models.graph import Graph, RopeStyle, Value


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes a plan is compiled for."""

    max_rows: int
    max_out: int
    context: int
    n_slots: int


@dataclass(frozen=True, slots=True)
class OpNote:
    """One line of `caldrix plan`: weight bytes read per step, multiply-adds times two per row."""

    layer: int | None
    kind: str
    shape: str
    types: str
    weight_bytes: int
    flops_per_row: int


def type_of(type_id: int) -> DType:
    """The type of a reference that has been bound, so that it is known."""
    found = by_id(type_id)
    assert found is not None
    return found


class Emitter:
    """Packs ops one by one; holds what every record needs to look up."""

    def __init__(
        self,
        graph: Graph,
        lowered: Lowered,
        activations: ArenaPlan,
        cache: CachePlan,
        weights: WeightPlan,
        limits: Limits,
        cache_type: int,
        rope: tuple[Ref, float],
    ) -> None:
        self.graph = graph
        self.lowered = lowered
        self.activations = activations
        self.cache = cache
        self.weights = weights
        self.limits = limits
        self.cache_type = cache_type
        self.rope = rope
        self.notes: list[OpNote] = []

    def value(self, value: Value) -> Ref:
        """Where a value's buffer is in the activation arena."""
        offset = self.activations.offsets[self.lowered.root(value).name]
        return Ref(native.ENUMS["CX_ARENA_ACTIVATIONS"], 0, offset)

    def plan(self) -> bytes:
        """The whole image."""
        records = [self._record(op) for op in self.lowered.ops]
        limits = self.limits
        head = native.pack_op(
            "cx_plan_head",
            {
                "magic": native.ENUMS["CX_PLAN_MAGIC"],
                "version": native.ENUMS["CX_PLAN_VERSION"],
                "n_ops": len(records),
                "n_arenas": self.weights.n_arenas,
                "max_rows": limits.max_rows,
                "max_out": limits.max_out,
                "vocab": self.graph.vocab_size,
                "context": limits.context,
                "n_slots": limits.n_slots,
                "logits_stride": stride_of(self.graph.vocab_size),
                "logits": self.value(self.lowered.logits)._asdict(),
            },
        )
        return head + b"".join(records)

    def _record(self, op: LoweredOp) -> bytes:
        emit = {
            "embed": self._embed,
            "rope_angles": self._rope_angles,
            "rms_norm": self._rms_norm,
            "linear": self._linear,
            "linear_int8": self._linear,
            "gated_linear": self._gated_linear,
            "gated_linear_int8": self._gated_linear,
            "quantize": self._quantize,
            "rope_store": self._rope_store,
            "attention": self._attention,
            "select_rows": self._select_rows,
        }[op.kind]
        fields: dict[str, object] = {
            "head": {
                "op": native.ENUMS["CX_OP_" + op.kind.upper()],
                "rows": native.ENUMS["CX_ROWS_" + op.rows.name],
                "layer": native.ENUMS["CX_NO_LAYER"] if op.layer is None else op.layer,
            }
        }
        for name, value in emit(op).items():
            fields[name] = value._asdict() if isinstance(value, Ref) else value
        return native.pack_op("cx_op_" + op.kind.removesuffix("_int8"), fields)

    def _note_plain(self, op: LoweredOp, shape: str, types: str, flops: int = 0) -> None:
        self.notes.append(OpNote(op.layer, op.kind, shape, types, 0, flops))

    def _note(self, op: LoweredOp, shape: str, refs: tuple[Ref, ...], elements: int) -> None:
        """For an op that reads whole matrices: `elements` of weights in all, in equal parts."""
        types = [type_of(ref.type) for ref in refs]
        n_bytes = sum(t.block_bytes * (elements // len(refs)) // t.block_elements for t in types)
        names = " ".join(dict.fromkeys(t.name for t in types))
        self.notes.append(OpNote(op.layer, op.kind, shape, names, n_bytes, 2 * elements))

    def _embed(self, op: LoweredOp) -> Mapping[str, object]:
        (y,), table = op.writes, self.weights.matrix(op.weights[0])
        self._note_plain(op, f"{self.graph.vocab_size} x {y.width}", type_of(table.type).name)
        return {
            "dim": y.width,
            "vocab": self.graph.vocab_size,
            "y_stride": stride_of(y.width),
            "table": table,
            "y": self.value(y),
        }

    def _rope_angles(self, op: LoweredOp) -> Mapping[str, object]:
        (y,), (frequencies, scale) = op.writes, self.rope
        self._note_plain(op, f"{y.width}", "f32")
        return {
            "half": y.width // 2,
            "y_stride": stride_of(y.width),
            "scale": scale,
            "inv_freq": frequencies,
            "y": self.value(y),
        }

    def _rms_norm(self, op: LoweredOp) -> Mapping[str, object]:
        (x,), (y,) = op.reads, op.writes
        self._note_plain(op, f"{x.width}", "f32", 3 * x.width)
        return {
            "dim": x.width,
            "eps": self.graph.norm_eps,
            "x_stride": stride_of(x.width),
            "y_stride": stride_of(y.width),
            "x": self.value(x),
            "weight": self.weights.vector(op.weights[0]),
            "y": self.value(y),
        }

    def _linear(self, op: LoweredOp) -> Mapping[str, object]:
        x, residual, k = op.reads[0], op.residual, op.parts[0].weight.shape[-1]
        refs = tuple(self.weights.matrix(part.weight) for part in op.parts)
        widths = [part.y.width for part in op.parts]
        for part, ref in zip(op.parts, refs, strict=True):
            added = " + residual" if residual else ""
            shape = f"{k} -> {part.y.width}{' + bias' if part.bias else ''}{added}"
            self._note(op, shape, (ref,), k * part.y.width)
        return {
            "k": k,
            "n_parts": len(op.parts),
            "x_stride": stride_of(x.width),
            "residual_stride": stride_of(residual.width) if residual else 0,
            "x": self.value(x),
            "residual": self.value(residual) if residual else NO_REF,
            "parts": [
                {
                    "weight": ref._asdict(),
                    "bias": self.weights.vector(part.bias)._asdict(),
                    "y": self.value(part.y)._asdict(),
                    "n": n,
                    "y_stride": stride_of(n),
                }
                for part, ref, n in zip(op.parts, refs, widths, strict=True)
            ],
        }

    def _gated_linear(self, op: LoweredOp) -> Mapping[str, object]:
        (x,), (y,), k = op.reads, op.writes, op.weights[0].shape[-1]
        gate, up = (self.weights.matrix(weight) for weight in op.weights)
        self._note(op, f"{k} -> 2 x {y.width}", (gate, up), 2 * k * y.width)
        return {
            "k": k,
            "n": y.width,
            "x_stride": stride_of(x.width),
            "y_stride": stride_of(y.width),
            "act": native.ENUMS["CX_ACT_SILU"],
            "x": self.value(x),
            "gate": gate,
            "up": up,
            "y": self.value(y),
        }

    def _quantize(self, op: LoweredOp) -> Mapping[str, object]:
        (x,), (y,) = op.reads, op.writes
        self._note_plain(op, f"{x.width}", "f32")
        return {
            "dim": x.width,
            "x_stride": stride_of(x.width),
            "y_stride": stride_of(y.width),
            "x": self.value(x),
            "y": self.value(y),
        }

    def _cache_fields(self, layer: int | None) -> dict[str, object]:
        assert layer is not None
        kv, shape = native.ENUMS["CX_ARENA_KV"], self.graph.attention
        return {
            "n_heads": shape.num_heads,
            "n_kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "context": self.limits.context,
            "n_slots": self.limits.n_slots,
            "k_cache": Ref(kv, self.cache_type, self.cache.k_offset(layer)),
            "v_cache": Ref(kv, self.cache_type, self.cache.v_offset(layer)),
        }

    def _rope_store(self, op: LoweredOp) -> Mapping[str, object]:
        (q, k, v, angles), shape = op.reads, self.graph.attention
        style = "CX_ROPE_HALF" if shape.rope_style is RopeStyle.HALF else "CX_ROPE_ADJACENT"
        heads = f"{shape.num_heads}+{shape.num_kv_heads} x {shape.head_dim}"
        self._note_plain(op, heads, type_of(self.cache_type).name)
        return self._cache_fields(op.layer) | {
            "rope_dim": shape.rope_dim,
            "style": native.ENUMS[style],
            "eps": shape.norm_eps,
            "q_stride": stride_of(q.width),
            "k_stride": stride_of(k.width),
            "v_stride": stride_of(v.width),
            "angles_stride": stride_of(angles.width),
            "q": self.value(q),
            "k": self.value(k),
            "v": self.value(v),
            "angles": self.value(angles),
            "q_norm": self.weights.vector(op.norms[0]),
            "k_norm": self.weights.vector(op.norms[1]),
        }

    def _attention(self, op: LoweredOp) -> Mapping[str, object]:
        (q,), (y,), shape = op.reads, op.writes, self.graph.attention
        heads = f"{shape.num_heads}/{shape.num_kv_heads} x {shape.head_dim}"
        self._note_plain(op, heads, type_of(self.cache_type).name)
        return self._cache_fields(op.layer) | {
            "scale": shape.scale,
            "q_stride": stride_of(q.width),
            "y_stride": stride_of(y.width),
            "q": self.value(q),
            "y": self.value(y),
        }

    def _select_rows(self, op: LoweredOp) -> Mapping[str, object]:
        (x,), (y,) = op.reads, op.writes
        self._note_plain(op, f"{x.width}", "f32")
        return {
            "dim": x.width,
            "x_stride": stride_of(x.width),
            "y_stride": stride_of(y.width),
            "x": self.value(x),
            "y": self.value(y),
        }
