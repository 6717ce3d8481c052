"""A GGUF file is the same model as the directory it was made of, whatever type its weights have.

f32 files are held to the reference's own results; quantised ones to a plain float64 forward pass
over the dequantised weights.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import stepper
import tiny
import tiny_gguf

from caldrix.engine.load import LoadOptions, load_model

HERE = Path(__file__).resolve().parent
SETS = {m["model"]: m["cases"] for m in json.loads((HERE / "tiny.json").read_text())["models"]}
QUANT_TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"]


def load(path: Path, **options: Any) -> Any:
    return load_model(path, LoadOptions(**{"threads": 2} | options), lambda message: None)


@pytest.mark.parametrize("model", tiny.MODELS, ids=lambda m: m.name)
def test_an_f32_file_equals_the_reference(model: tiny.Tiny, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tiny_gguf.write_gguf(path, model)
    loaded = load(path, dtype="f32")
    assert loaded.eos_token_ids == {tiny.END}
    for case in SETS[model.name]:
        prompt, reply = case["prompt_ids"], case["greedy_ids"]
        rows = reference.log_softmax(stepper.all_logits(loaded.program, prompt + reply))
        chosen = rows[np.arange(len(prompt) - 1, len(prompt) + len(reply) - 1), reply]
        assert np.abs(chosen - case["logprobs"]).max() < 2e-3
        assert loaded.tokenizer.encode(bytes(prompt).decode()) == prompt
    loaded.program.close()


@pytest.mark.parametrize("kind", QUANT_TYPES)
def test_quantised_weights_compute_as_if_dequantised(kind: str, tmp_path: Path) -> None:
    model = next(m for m in tiny.MODELS if m.name == "qwen3")
    path = tmp_path / "m.gguf"
    held = tiny_gguf.write_gguf(path, model, {"proj": kind, "embed": kind, "lm_head": "Q8_0"})
    loaded = load(path, dtype="f32")
    ids = SETS["qwen3"][2]["prompt_ids"]
    want = reference.forward(model.config_json(), held, ids)
    got = stepper.all_logits(loaded.program, ids)
    assert np.abs(got - want).max() < 1e-3
    loaded.program.close()


def test_mixed_types_in_one_layer(tmp_path: Path) -> None:
    model = next(m for m in tiny.MODELS if m.name == "qwen2")
    path = tmp_path / "m.gguf"
    types = {"q_proj": "Q4_0", "k_proj": "F16", "v_proj": "Q8_0", "gate_proj": "BF16", "up": "Q5_1"}
    held = tiny_gguf.write_gguf(path, model, types)
    loaded = load(path)
    assert loaded.program.options.dtype == "f32"
    ids = SETS["qwen2"][2]["prompt_ids"]
    got = stepper.all_logits(loaded.program, ids)
    assert np.abs(got - reference.forward(model.config_json(), held, ids)).max() < 1e-3
    loaded.program.close()
