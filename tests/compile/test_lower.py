"""What is fused into what, and which values share a buffer."""

import pytest
from tiny import MODELS, Tiny

from caldrix.compile.lower import Lowered, lower
from caldrix.compile.memory import plan_activations, stride_of
from caldrix.models import family_of_hf
from caldrix.models.graph import Rows

LAYER = [
    "rms_norm",
    "linear",
    "rope_store",
    "attention",
    "linear",
    "rms_norm",
    "gated_linear",
    "linear",
]


def lowered(tiny: Tiny) -> Lowered:
    values = tiny.config_json()
    family = family_of_hf(values, "c")
    return lower(family.build(family.config_from_hf(values, "c")))


@pytest.mark.parametrize("tiny", MODELS, ids=lambda t: t.name)
def test_a_layer_is_eight_ops(tiny: Tiny) -> None:
    ops = lowered(tiny).ops
    kinds = [op.kind for op in ops]
    assert kinds[:2] == ["embed", "rope_angles"]
    assert kinds[2:10] == kinds[10:18] == LAYER
    assert kinds[18:] == ["select_rows", "rms_norm", "linear"]
    assert [op.layer for op in ops[2:18]] == [0] * 8 + [1] * 8
    assert [op.rows for op in ops[-3:]] == [Rows.OUTPUT] * 3


def test_q_k_and_v_are_one_linear_and_the_residual_is_added_in_place() -> None:
    low = lowered(MODELS[0])
    qkv, out, down = (op for op in low.ops[2:10] if op.kind == "linear")
    assert [part.y.width for part in qkv.parts] == [72, 24, 24]
    assert qkv.residual is None
    stream = low.ops[0].writes[0]
    for op in (out, down):
        assert op.residual is not None
        assert low.root(op.residual) == low.root(op.writes[0]) == stream


def test_head_norms_and_biases_travel_with_their_ops() -> None:
    by_name = {tiny.name: lowered(tiny) for tiny in MODELS}
    plain = next(op for op in by_name["llama-tied"].ops if op.kind == "rope_store")
    normed = next(op for op in by_name["qwen3"].ops if op.kind == "rope_store")
    assert plain.norms == (None, None)
    assert [w.name.split(".")[-2] for w in normed.norms if w] == ["q_norm", "k_norm"]
    qkv = next(op for op in by_name["qwen2"].ops if op.kind == "linear")
    assert all(part.bias for part in qkv.parts)


@pytest.mark.parametrize("tiny", MODELS, ids=lambda t: t.name)
@pytest.mark.parametrize(("rows", "out"), [(1, 1), (64, 1), (7, 16)])
def test_no_two_live_values_share_a_byte(tiny: Tiny, rows: int, out: int) -> None:
    low = lowered(tiny)
    plan = plan_activations(low, rows, out)
    spans: dict[str, tuple[int, int, int, int]] = {}
    for index, op in enumerate(low.ops):
        for value in (*op.reads, *op.writes):
            root = low.root(value)
            start = plan.offsets[root.name]
            n = (out if root.rows is Rows.OUTPUT else rows) * stride_of(root.width) * 4
            first = spans.get(root.name, (index, 0, 0, 0))[0]
            spans[root.name] = (first, index, start, start + n)
    everything = list(spans.values())
    for i, (first, last, start, end) in enumerate(everything):
        assert start % 64 == 0
        assert end <= plan.size_bytes
        for first2, last2, start2, end2 in everything[i + 1 :]:
            if first <= last2 and first2 <= last:
                assert end <= start2 or end2 <= start


def test_buffers_are_used_again() -> None:
    low = lowered(MODELS[0])
    plan = plan_activations(low, 64, 1)
    total = sum(
        64 * stride_of(v.width) * 4
        for v in {low.root(v).name: low.root(v) for op in low.ops for v in op.writes}.values()
    )
    assert plan.size_bytes < total / 2
