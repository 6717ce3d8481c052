"""What is refused before anything is allocated, and what `caldrix plan` prints."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tiny

from caldrix import native
from caldrix.compile import program as compiler
from caldrix.compile.program import Program
from caldrix.engine.load import LoadOptions, load_program
from caldrix.errors import RefusedError, TooLargeError

TIED = next(model for model in tiny.MODELS if model.name == "llama-tied")
ROOT = Path(__file__).resolve().parents[2]
UP = "model.layers.1.mlp.up_proj.weight"
Tensors = dict[str, npt.NDArray[Any]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny.write_model(tmp_path / "model", TIED)


def compiled(directory: Path, **options: Any) -> Program:
    return load_program(directory, LoadOptions(**{"threads": 1} | options))


def rewrite(directory: Path, tensors: Tensors) -> None:
    tiny.write_safetensors(directory / "model.safetensors", tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra.weight": np.zeros(3, np.float32)}, "tensor 'extra.weight' belongs to no part of"),
        ({UP: np.zeros((136, 71), np.float32)}, f"'{UP}' has shape [136, 71]; the model needs [1"),
        ({UP: np.zeros((72, 136), np.float32)}, "the model needs [136, 72]"),
        ({UP: None}, f"no tensor '{UP}' among its"),
        ({"model.norm.weight": np.zeros((1, 72), np.float32)}, "the model needs [72]"),
    ],
)
def test_a_checkpoint_that_is_not_the_models_is_refused_by_name(
    directory: Path,
    change: dict[str, npt.NDArray[Any] | None],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "allocate", None)
    changed = tiny.weights(TIED) | change
    rewrite(directory, {name: array for name, array in changed.items() if array is not None})
    with pytest.raises(RefusedError) as caught:
        compiled(directory)
    assert str(directory) in str(caught.value)
    assert message in str(caught.value)


def test_an_output_matrix_beside_tied_embeddings_and_old_buffers_are_left_alone(
    directory: Path,
) -> None:
    unused = {
        "lm_head.weight": np.zeros((272, 72), np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(6, np.float32),
    }
    rewrite(directory, tiny.weights(TIED) | unused)
    compiled(directory).close()


def test_what_does_not_fit_is_refused_with_both_numbers_before_it_is_allocated(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "allocate", None)
    monkeypatch.setattr(compiler, "memory_limit", lambda mapped: 1_000_000)
    with pytest.raises(TooLargeError) as caught:
        compiled(directory, max_context=1024)
    pattern = r": needs (\S+) MB \(.* of cache at --ctx 1024\); this process may use 1\.0 MB; use a"
    assert re.search(pattern, str(caught.value)), str(caught.value)
    with pytest.raises(TooLargeError) as caught:
        compiled(directory, max_context=1024, n_slots=8)
    pattern = r"at --ctx 1024 and --parallel 8\); .* use a smaller --ctx, --parallel or model$"
    assert re.search(pattern, str(caught.value)), str(caught.value)


def test_the_plan_shows_each_op_once_for_layers_that_look_alike(directory: Path) -> None:
    program = compiled(directory, dtype="f32", max_context=100, n_slots=2)
    lines = [line.split() for line in program.describe().splitlines()]
    program.close()
    ops = lines[1 : lines.index([])]
    assert ops[0][:2] == ["-", "embed"]
    layer = [op for op in ops if op[0] == "0-1"]
    assert [op[1] for op in layer] == [
        *["rms_norm", "linear", "linear", "linear", "rope_store", "attention", "linear"],
        *["rms_norm", "gated_linear", "linear"],
    ]
    # k: 72 -> 2 heads of 12 in f32; a multiplication and an addition a weight.
    assert layer[2][2:] == ["72", "->", "24", "linear/f32", "6.9", "kB", "3,456"]
    assert ops[-1][0] == "all"
    memory = " ".join(lines[-1])
    cache = 2 * 2 * (2 * 2 * 100 * 12 * 4)  # layers, keys and values, [slots, heads, context, dim]
    assert program.sizes.cache == cache
    assert f"cache {cache / 1000:.1f} kB" in memory


CUT = """
import os, sys
from pathlib import Path
from caldrix.engine.load import LoadOptions, load_program
from caldrix.errors import EngineError

directory = Path(sys.argv[1])
program = load_program(directory, LoadOptions(threads=1))
program.step([1], [0], [0], [0], None)
os.truncate(directory / "model.safetensors", int(sys.argv[2]))
for _ in range(2):
    try:
        program.step([2], [1], [0], [0], None)
    except EngineError as error:
        print(error)
"""


@pytest.mark.parametrize("size", [0, 8, 100_000])
def test_a_weight_file_cut_while_in_use_is_an_error_of_every_step_after(
    directory: Path, size: int
) -> None:
    path = directory / "model.safetensors"
    half = {name: values.astype(np.float16) for name, values in tiny.weights(TIED).items()}
    rewrite(directory, half)  # which stay in the file, unlike f32 ones
    whole = path.stat().st_size
    command = [sys.executable, "-c", CUT, str(directory), str(size)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    line = f"{path}: cut from {whole} to {size} bytes while in use; start again with a whole file"
    assert (done.returncode, done.stdout.splitlines()) == (0, [line, line]), done.stderr  # SIGBUS
