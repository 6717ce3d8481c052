"""The numpy judge against what the reference library computed for the models of tiny.py."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import tiny

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tiny.json").read_text("utf8"))["models"]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: str(golden["model"]))
def test_forward_pass_equals_the_reference_library(golden: dict[str, Any]) -> None:
    model = next(model for model in tiny.MODELS if model.name == golden["model"])
    config, weights = model.config_json(), tiny.weights(model)
    for case in golden["cases"]:
        prompt, reply = case["prompt_ids"], case["greedy_ids"]
        logits = reference.forward(config, weights, prompt + reply)
        rows = reference.log_softmax(logits[len(prompt) - 1 : -1])
        # the library's numbers are f32 sums over two layers, kept to 5 decimals
        chosen = rows[np.arange(len(reply)), reply]
        np.testing.assert_allclose(chosen, case["logprobs"], rtol=0, atol=2e-4)
        np.testing.assert_allclose(rows[-1], case["last_row"], rtol=0, atol=5e-4)
        for row, token, margin in zip(rows, reply, case["margins"], strict=True):
            if margin > 2e-3:
                assert int(row.argmax()) == token


def test_adjacent_pairs_are_the_halves_of_a_permuted_head() -> None:
    rng = np.random.default_rng(1)
    halves = rng.standard_normal((3, 2, 20))
    order = np.concatenate([np.stack([np.arange(8), np.arange(8) + 8], 1).ravel(), range(16, 20)])
    angles = reference.rope_angles([0, 1, 77], 0.5 ** np.arange(8))
    turned = reference.rope(halves, angles)
    pairs = reference.rope(halves[..., order], angles, adjacent=True)
    np.testing.assert_array_equal(turned[..., order], pairs)
    np.testing.assert_array_equal(turned[0], halves[0])
    np.testing.assert_array_equal(turned[..., 16:], halves[..., 16:])
