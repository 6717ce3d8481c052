"""What a load decides (type, context, name, end tokens) and what it refuses by name."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny
import tiny_gguf

from caldrix import native
from caldrix.engine import load as loader
from caldrix.engine.load import LoadedModel, LoadOptions, load_model
from caldrix.errors import EngineError, RefusedError, TooLargeError

ROOT = Path(__file__).resolve().parents[2]
TIED = next(model for model in tiny.MODELS if model.name == "llama-tied")
QWEN2 = next(model for model in tiny.MODELS if model.name == "qwen2")
LLAMA3 = next(model for model in tiny.MODELS if model.name == "llama-llama3")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny.write_model(tmp_path / "model", TIED)


def loaded(path: Path, **options: Any) -> tuple[LoadedModel, list[str]]:
    said: list[str] = []
    model = load_model(path, LoadOptions(**{"threads": 1} | options), said.append)
    model.program.close()
    return model, said


def change(path: Path, **values: object) -> None:
    known = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
    path.write_text(json.dumps(known | values), encoding="utf8")


def test_the_context_is_the_default_unless_the_model_has_less_or_it_is_asked_for(
    directory: Path,
) -> None:
    assert loaded(directory)[0].context == 1024  # what the tiny models have
    assert loaded(directory, max_context=100)[0].context == 100
    change(directory / "config.json", max_position_embeddings=10**6)
    assert loaded(directory)[0].context == loader.DEFAULT_CONTEXT
    change(directory / "config.json", max_position_embeddings=1024)
    with pytest.raises(TooLargeError, match=r"--ctx 1025: .* was trained for 1024 positions; use"):
        loaded(directory, max_context=1025)


def test_shared_weights_are_counted_once_and_a_revision_is_passed_on(directory: Path) -> None:
    model, _ = loaded(directory, revision="abc")
    sizes = [values.size for values in tiny.weights(TIED).values()]
    assert (model.n_params, model.revision) == (sum(sizes), "abc")
    assert model.infill is None


def test_a_gguf_file_names_tokens_for_filling_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    ids = {"fim_pre": 256, "fim_suf": 257, "fim_mid": 258}
    tiny_gguf.write_gguf(path, QWEN2, more={f"{name}_token_id": i for name, i in ids.items()})
    infill = loaded(path)[0].infill
    assert infill is not None
    assert infill.ids == (256, 257, 258)


def test_floats_run_at_bf16_and_quantised_weights_at_f32(directory: Path, tmp_path: Path) -> None:
    assert loaded(directory)[0].program.options.dtype == "bf16"
    assert loaded(directory, dtype="f32")[0].program.options.dtype == "f32"
    path = tmp_path / "m.gguf"
    tiny_gguf.write_gguf(path, QWEN2, {"q_proj": "Q8_0"})
    assert loaded(path)[0].program.options.dtype == "f32"
    with pytest.raises(RefusedError, match=r"--dtype bf16: quantized weights \(q8_0\) run at f32;"):
        loaded(path, dtype="bf16")


def test_a_load_says_what_it_made_in_one_line(directory: Path) -> None:
    model, (line,) = loaded(directory, dtype="f32", max_context=64, cpu_isa="scalar")
    assert line.startswith("compiled model in ")
    assert line.endswith(" of weights, f32, context 64, cpu scalar, 1 thread(s)")
    assert model.name == "model"
    assert loaded(directory, name="known as")[0].name == "known as"


def test_end_tokens_are_those_of_both_configurations_or_else_the_tokenizers(
    directory: Path,
) -> None:
    assert loaded(directory)[0].eos_token_ids == {tiny.END}
    change(directory / "generation_config.json", eos_token_id=[1, 2])
    assert loaded(directory)[0].eos_token_ids == {tiny.END, 1, 2}
    change(directory / "config.json", eos_token_id=None)
    assert loaded(directory)[0].eos_token_ids == {1, 2}
    (directory / "generation_config.json").unlink()
    assert loaded(directory)[0].eos_token_ids == {tiny.END}
    change(directory / "tokenizer_config.json", eos_token=None)
    assert loaded(directory)[0].eos_token_ids == frozenset()
    change(directory / "config.json", eos_token_id=-1)
    with pytest.raises(RefusedError, match=r"config\.json: eos_token_id is -1; a token id"):
        loaded(directory)


def test_quantised_safetensors_and_a_tokenizer_too_large_are_refused(directory: Path) -> None:
    change(directory / "config.json", quantization_config={"quant_method": "x"})
    with pytest.raises(RefusedError, match=r"config\.json: quantization_config: .*; use a GGUF"):
        loaded(directory)
    change(directory / "config.json", quantization_config=None)
    tokenizer = directory / "tokenizer.json"
    model = json.loads(tokenizer.read_text(encoding="utf8"))["model"]
    model["vocab"] |= {f"more{i}": 1000 + i for i in range(tiny.VOCAB)}
    change(tokenizer, model=model)
    with pytest.raises(RefusedError, match=r"the tokenizer has \d+ tokens, the model only 272"):
        loaded(directory)


@pytest.mark.parametrize(
    ("divisors", "message"),
    [
        (np.float32([1, 2]), "'rope_freqs.weight' has shape [2]; the model needs [8]"),
        (np.float32([1] * 7 + [0]), "holds a value that is not above 0"),
        (np.float32([1] * 7 + [np.nan]), "holds a value that is not above 0"),
    ],
)
def test_divisors_of_frequencies_that_do_not_fit_are_refused(
    divisors: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_gguf, "llama3_divisors", lambda config: divisors)
    path = tmp_path / "m.gguf"
    tiny_gguf.write_gguf(path, LLAMA3)
    with pytest.raises(RefusedError) as caught:
        loaded(path)
    assert message in str(caught.value)


def test_a_processor_that_no_row_fits_is_named(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "all_rows", lambda: [("x86-64-v3", False)])
    with pytest.raises(EngineError, match=r"can run no row of this build \(x86-64-v3\)"):
        loaded(directory)


def test_what_a_file_leaves_out_is_told_to_whoever_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_pre", lambda self, pre: None)
    path = tmp_path / "m.gguf"
    tiny_gguf.write_gguf(path, QWEN2)
    _, (guess, _) = loaded(path)
    assert guess == f"{path}: no tokenizer.ggml.pre; words are cut as for 'default'"
    assert capfd.readouterr().err == ""


def test_a_config_alone_says_what_could_not_be_loaded(directory: Path) -> None:
    config = directory / "config.json"
    (directory / "model.safetensors").unlink()
    loader.check_config(config, LoadOptions(max_context=1024))
    with pytest.raises(TooLargeError, match="--ctx 1025"):
        loader.check_config(config, LoadOptions(max_context=1025))
    change(config, model_type="idefics3")
    with pytest.raises(RefusedError, match="model_type 'idefics3' is not supported"):
        loader.check_config(config, LoadOptions())


def test_a_model_dropped_in_a_cycle_is_collected(directory: Path) -> None:
    """Before: the collector cleared a memoryview of the file under the model, and crashed."""
    code = (
        "import gc, sys\n"
        "from pathlib import Path\n"
        "from caldrix.engine.load import LoadOptions, load_model\n"
        "for _ in range(3):\n"
        "    model = load_model(Path(sys.argv[1]), LoadOptions(threads=2), lambda text: None)\n"
        "    model.program.itself = model\n"
        "    del model\n"
        "    gc.collect()\n"
        "last = load_model(Path(sys.argv[1]), LoadOptions(threads=2), lambda text: None)\n"
        "last.program.itself = last\n"
    )
    command = [sys.executable, "-c", code, str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
