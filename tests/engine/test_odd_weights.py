"""Weights that are no numbers, or too large: a reply ends with an error that says so, on every row,
and the engine answers the next request as if nothing had been. Equal scores pick the lowest id.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import tiny
import tiny_gguf

from caldrix import native
from caldrix.engine.engine import Engine
from caldrix.engine.load import LoadOptions, load_program
from caldrix.engine.sequence import Request, SamplingParams
from caldrix.errors import EngineError

NAN, INF = float("nan"), float("inf")
MODEL = tiny.Tiny(
    "plain",
    "Qwen2ForCausalLM",
    {"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "tie_word_embeddings": False},
)
EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYER = "model.layers.0."
BAD = 113  # the row that is spoilt where only one is
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 1.0, "seed": 1, "min_p": 0.1},
    {"temperature": 1.0, "seed": 1, "top_p": 0.5},
    {"temperature": 1.0, "seed": 1, "top_k": 5},
    {"repetition_penalty": 1.5},
]

Reply = list[int] | str
Weights = dict[str, npt.NDArray[np.float32]]


def replies(path: Path, requests: list[Request], **options: Any) -> list[Reply]:
    """The tokens of each reply, or its error; one after another on one engine."""

    async def reply(engine: Engine, request: Request) -> Reply:
        try:
            return [token async for token in engine.submit(request)]
        except EngineError as error:
            return str(error)

    async def play() -> list[Reply]:
        engine = Engine(program)
        await engine.start()
        try:
            return [await reply(engine, request) for request in requests]
        finally:
            await engine.close()

    program = load_program(path, LoadOptions(**{"threads": 1, "max_context": 64} | options))
    try:
        return asyncio.run(play())
    finally:
        program.close()


def written(folder: Path, changes: Mapping[str, Any], **config: Any) -> Path:
    """The model with some values of some weights replaced: name -> (place, value)."""
    model = tiny.Tiny(MODEL.name, MODEL.architecture, MODEL.config | config)
    weights: Weights = dict(tiny.weights(model))
    for name, (place, value) in changes.items():
        weights[name] = weights[name].copy()
        weights[name][place] = value
    tiny.write_model(folder, model)
    tiny.write_safetensors(folder / "model.safetensors", dict(weights))
    return folder


def asked(prompt: tuple[int, ...] = (1, 2, 3), **more: Any) -> Request:
    return Request(prompt, SamplingParams(**more), max_tokens=4)


ALL = np.s_[:]
ODD: dict[str, dict[str, Any]] = {
    "NaN in the head": {HEAD: ((BAD, 5), NAN)},
    "infinity in the head": {HEAD: ((BAD, 5), INF)},
    "minus infinity in the head": {HEAD: ((0, 0), -INF)},
    "NaN in the last norm": {NORM: (7, NAN)},
    "a last norm that overflows": {NORM: (ALL, 1e38), HEAD: (ALL, 3.0)},
    "a first norm that overflows": {LAYER + "input_layernorm.weight": (ALL, 1e38)},
    "infinity in q": {LAYER + "self_attn.q_proj.weight": ((0, 0), INF)},
    "NaN in a bias of k": {LAYER + "self_attn.k_proj.bias": (3, NAN)},
    "infinity in v": {LAYER + "self_attn.v_proj.weight": ((1, 1), INF)},
    "NaN in gate": {LAYER + "mlp.gate_proj.weight": ((95, 63), NAN)},
    "infinity in down": {LAYER + "mlp.down_proj.weight": (ALL, -INF)},
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("what", ODD)
def test_scores_that_are_no_numbers_end_the_reply_with_an_error(
    what: str, dtype: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "m", ODD[what])
    requests = [asked(**sampling) for sampling in SAMPLINGS]
    requests.append(Request((1, 2, 3), max_tokens=4, n_logprobs=5))
    requests.append(Request((1, 2, 3), max_tokens=4, logit_bias={5: 100.0}))
    for found in replies(path, requests, dtype=dtype):
        assert found == "the model gave no valid scores for token 1 of the reply (NaN or infinite)"


@pytest.mark.parametrize("row", [name for name, usable in native.all_rows() if usable])
def test_one_bad_token_spoils_its_own_reply_alone(row: str, tmp_path: Path) -> None:
    good, bad = (1, 2, 3), (1, BAD, 3)
    (want,) = replies(written(tmp_path / "good", {}), [asked(good)], cpu_isa=row)
    path = written(tmp_path / "bad", {EMBED: ((BAD, 5), NAN)})
    found = replies(path, [asked(good), asked(bad), asked(good), asked(bad)], cpu_isa=row)
    assert BAD not in want
    assert [found[0], found[2]] == [want, want]  # also from the slot that held a NaN
    for error in (found[1], found[3]):
        assert error == "the model gave no valid scores for token 1 of the reply (NaN or infinite)"


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_equal_scores_pick_the_lowest_token_each_time(dtype: str, tmp_path: Path) -> None:
    path = written(tmp_path / "m", {HEAD: (ALL, 0.0)})
    drawn = asked(temperature=1.0, seed=3)
    found = replies(path, [asked(), asked(), drawn, drawn], dtype=dtype)
    assert found[:2] == [[0, 0, 0, 0]] * 2
    assert found[2] == found[3]
    assert len(set(found[2])) > 1


def test_an_epsilon_of_zero_divides_by_zero_only_where_a_row_is_zero(tmp_path: Path) -> None:
    path = written(tmp_path / "m", {EMBED: (BAD, 0.0)}, rms_norm_eps=0.0)
    found = replies(path, [asked(), asked((BAD,)), asked()])
    assert found[0] == found[2]
    assert len(found[0]) == 4
    assert "no valid scores for token 1" in found[1]


# Where a block's scale is, in bytes from its start.
SCALES = {"Q8_0": 0, "Q4_0": 0, "Q4_1": 2, "Q5_0": 0, "Q5_1": 0, "F16": 0}


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("scale", [b"\x01\x7e", b"\x00\xfc"], ids=["NaN", "infinity"])
def test_a_block_whose_scale_is_no_number_is_an_error(
    kind: str, scale: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    tiny_gguf.write_gguf(path, MODEL, {"down_proj": kind})
    (tensor,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_down.weight")
    at = tensor.data_offset + SCALES[kind]
    raw = bytearray(path.read_bytes())
    raw[at : at + 2] = scale
    path.write_bytes(raw)
    (found,) = replies(path, [asked()])
    assert found == "the model gave no valid scores for token 1 of the reply (NaN or infinite)"
