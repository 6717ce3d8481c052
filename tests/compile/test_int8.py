"""--activations int8: which ops take it, what it says where none does, what it costs, row bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import stepper
import tiny
import tiny_gguf

from caldrix.compile.program import Program
from caldrix.engine.load import LoadOptions, load_model

QWEN2, QWEN3 = (next(m for m in tiny.MODELS if m.name == name) for name in ("qwen2", "qwen3"))
IDS = [int(v) for v in (tiny.uniform(7, 150) + 1) * 128]
EVERYWHERE = {"proj": "Q8_0", "embed": "Q8_0", "lm_head": "Q8_0"}


def load(path: Path, **options: Any) -> tuple[Program, list[str]]:
    said: list[str] = []
    asked = LoadOptions(**{"threads": 2, "activations": "int8"} | options)
    return load_model(path, asked, said.append).program, said


def test_every_linear_layer_of_quantised_weights_takes_int8(tmp_path: Path) -> None:
    tiny_gguf.write_gguf(tmp_path / "m.gguf", QWEN3, EVERYWHERE)
    program, said = load(tmp_path / "m.gguf")
    program.close()
    kinds = [note.kind for note in program.notes if note.layer == 0]
    assert kinds == [
        *["rms_norm", "quantize", *["linear_int8"] * 3, "rope_store", "attention"],
        *["quantize", "linear_int8", "rms_norm", "quantize", "gated_linear_int8"],
        "linear",  # its rows are 104 long, which q8_0 cannot hold
    ]
    assert [note.kind for note in program.notes[-2:]] == ["quantize", "linear_int8"]
    text = program.describe()
    assert "linear_int8/q8_0" in text
    assert "type f32, activations int8" in text
    assert not any("changes nothing" in line for line in said)


def test_an_op_with_another_type_among_its_weights_keeps_f32(tmp_path: Path) -> None:
    types = {"q_proj": "Q4_0", "k_proj": "F16", "v_proj": "Q8_0", "gate": "Q5_1", "up": "Q5_0"}
    held = tiny_gguf.write_gguf(tmp_path / "m.gguf", QWEN2, types)
    program, _ = load(tmp_path / "m.gguf")
    kinds = {note.kind for note in program.notes if note.layer == 0}
    assert "linear_int8" not in kinds
    assert "gated_linear_int8" in kinds
    got = stepper.all_logits(program, IDS[:40])
    program.close()
    want = reference.forward(QWEN2.config_json(), held, IDS[:40])
    assert 1e-6 < np.abs(got - want).max() < 0.1


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_a_model_that_is_not_quantised_says_that_nothing_changes(kind: str, tmp_path: Path) -> None:
    directory = tiny.write_model(tmp_path / "m", QWEN3)
    program, said = load(directory, dtype=kind)
    plain, without = load(directory, dtype=kind, activations="f32")
    (line,) = [line for line in said if "int8" in line]
    assert line.startswith("--activations int8 changes nothing: m has no linear layer whose")
    assert "q8_0, q4_0" in line
    assert not any("int8" in line for line in without)
    got, want = (stepper.last_logits(p, IDS) for p in (program, plain))
    assert got.tobytes() == want.tobytes()
    program.close()
    plain.close()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_the_loss_stays_close_to_that_of_f32(kind: str, tmp_path: Path) -> None:
    """Not exact: log-probabilities move in the second digit, their mean hardly."""
    held = tiny_gguf.write_gguf(tmp_path / "m.gguf", QWEN3, {"proj": kind, "lm_head": kind})
    want = reference.log_softmax(reference.forward(QWEN3.config_json(), held, IDS))
    program, _ = load(tmp_path / "m.gguf")
    got = reference.log_softmax(stepper.all_logits(program, IDS))
    program.close()
    rows = np.arange(len(IDS) - 1)
    moved = got[rows, IDS[1:]] - want[rows, IDS[1:]]
    assert 1e-6 < np.abs(moved).max() < 0.1
    assert abs(moved.mean()) < 0.005


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1"])
def test_a_row_depends_on_its_prefix_alone(kind: str, tmp_path: Path) -> None:
    """Chunks of 1, 7, 64 and 150, other slots, other rows beside it, 1 to 3 threads: one result."""
    tiny_gguf.write_gguf(tmp_path / "m.gguf", QWEN3, {"proj": kind, "lm_head": kind})
    results = set()
    for threads in (1, 2, 3):
        program, _ = load(tmp_path / "m.gguf", threads=threads, n_slots=3)
        for chunk in (1, 7, 64, 150):
            results.add(stepper.last_logits(program, IDS, slot=chunk % 3, chunk=chunk).tobytes())
        stepper.last_logits(program, IDS[:-1], slot=1)
        beside = [(9, 0, 0), (IDS[-1], len(IDS) - 1, 1), (5, 0, 2), (6, 1, 2)]
        results.add(stepper.step(program, beside, [1, 2])[0].tobytes())
        program.close()
    assert len(results) == 1
