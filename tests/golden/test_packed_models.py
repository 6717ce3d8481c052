"""Weights as planes change no bit of any score: on every row of this processor, at either type,
from files of either format, mapped or in memory.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import stepper
import tiny
import tiny_gguf

from caldrix import native
from caldrix.compile import program as compiler
from caldrix.engine import load
from caldrix.engine.load import LoadOptions, load_model, load_program
from caldrix.errors import EngineError, TooLargeError

IDS = [(7 * i * i + 3) % tiny.VOCAB for i in range(90)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wide")
    gguf = folder / "bf16.gguf"
    tiny_gguf.write_gguf(gguf, tiny.WIDE, {"proj": "BF16", "embed": "BF16", "lm_head": "BF16"})
    mixed = folder / "mixed.gguf"
    tiny_gguf.write_gguf(mixed, tiny.WIDE, {"proj": "Q8_0", "embed": "BF16", "lm_head": "Q4_0"})
    return {
        "bf16": tiny.write_model(folder / "bf16", tiny.WIDE, bf16=True),
        "f32": tiny.write_model(folder / "f32", tiny.WIDE),
        "gguf": gguf,
        "mixed": mixed,
    }


def scores(path: Path, **options: Any) -> tuple[npt.NDArray[np.float32], str]:
    """Of a prompt in chunks and of each row by itself; and the plan."""
    program = load_program(path, LoadOptions(**{"threads": 2, "max_context": 128} | options))
    try:
        last = stepper.last_logits(program, IDS)
        return np.vstack([last, stepper.all_logits(program, IDS[:20])]), program.describe()
    finally:
        program.close()


@pytest.mark.parametrize("row", native.rows())
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", ["bf16", "gguf", "f32"])
def test_not_a_bit_differs(
    paths: dict[str, Path], name: str, dtype: str, row: str, tmp_path: Path
) -> None:
    how = {"dtype": dtype, "cpu_isa": row}
    want, plan = scores(paths[name], **how)
    assert "planes" not in plan
    packs = (name, dtype) != ("f32", "f32")
    for directory in (None, tmp_path, tmp_path):
        got, plan = scores(paths[name], **how, weight_codec="planes", layout_dir=directory)
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
        kernels = [line for line in plan.splitlines() if "linear/" in line]
        assert all(("linear/planes" in line) == packs for line in kernels)
        assert (" planes " in plan.splitlines()[-1]) == packs


def test_of_a_mixed_file_only_what_is_bf16_is_packed(paths: dict[str, Path]) -> None:
    want, _ = scores(paths["mixed"])
    got, plan = scores(paths["mixed"], weight_codec="planes")
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    assert "embed/planes" in plan
    assert "linear/q8_0" in plan


def loaded(path: Path, **options: Any) -> list[str]:
    """What is said of a load."""
    said: list[str] = []
    how = LoadOptions(**{"threads": 1, "max_context": 64} | options)
    load_model(path, how, said.append).program.close()
    return said


def test_a_model_without_bf16_says_so_in_one_line(paths: dict[str, Path], tmp_path: Path) -> None:
    quantised = tmp_path / "q.gguf"
    types = {"proj": "Q8_0", "embed": "Q4_0", "lm_head": "Q8_0"}
    tiny_gguf.write_gguf(quantised, tiny.WIDE, types)
    for path, dtype, found in ((quantised, None, "q4_0, q8_0"), (paths["f32"], "f32", "f32")):
        said = loaded(path, dtype=dtype, weight_codec="planes", layout_dir=tmp_path / "layout")
        assert said[-2] == (
            "--weight-codec planes packs bf16 matrices with rows of a multiple of 256 values, and"
            f" this model has none ({found}): the weights stay as they are"
        )
        assert said[-1].startswith("compiled ")
    assert not (tmp_path / "layout").exists()


def test_by_default_nothing_is_packed_or_said_of_it(paths: dict[str, Path]) -> None:
    (only,) = loaded(paths["bf16"])
    assert only.startswith("compiled ")


def test_a_layout_cut_while_in_use_is_an_error_of_the_next_step(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    options = LoadOptions(threads=1, max_context=64, weight_codec="planes", layout_dir=tmp_path)
    program = load_program(paths["bf16"], options)
    (layout,) = tmp_path.glob("*.layout")
    whole = layout.stat().st_size
    stepper.step(program, [(1, 0, 0)], [0])
    os.truncate(layout, whole - 1)
    with pytest.raises(EngineError, match=f"{layout}: cut from {whole} to {whole - 1} bytes whi"):
        stepper.step(program, [(2, 1, 0)], [0])
    program.close()


# --- what fits ------------------------------------------------------------------------------------


def sizes(path: Path, **options: Any) -> Any:
    program = load_program(path, LoadOptions(**{"threads": 1, "max_context": 64} | options))
    program.close()
    return program.sizes


@pytest.mark.parametrize("name", ["bf16", "gguf", "f32"])
def test_planes_count_instead_of_what_was_packed(
    paths: dict[str, Path], name: str, tmp_path: Path
) -> None:
    raw = sizes(paths[name])
    n_values = sum(np.prod(s) for s in tiny.shapes(tiny.WIDE.config_json()).values() if len(s) == 2)
    stored = n_values * (4 if name == "f32" else 2)
    for directory in (None, tmp_path):
        packed = sizes(paths[name], weight_codec="planes", layout_dir=directory)
        assert packed.files == raw.files - stored
        assert n_values * 398 // 256 <= packed.planes < n_values * 398 // 256 + 10_000
        assert packed.weights == raw.weights - (2 * n_values if name == "f32" else 0)
        assert packed.total < raw.total


def test_a_model_that_fits_only_as_planes_runs_and_less_is_refused_before_it_is_packed(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, how = paths["bf16"], {"weight_codec": "planes"}
    raw, planes = sizes(path), sizes(path, **how)
    limit = [planes.total]
    for module in (compiler, load):
        monkeypatch.setattr(module, "memory_limit", lambda mapped: limit[0])
    monkeypatch.setattr(load, "TEXT_BYTES", 0)
    with pytest.raises(TooLargeError, match=f"{raw.mapped / 1e6:.1f} MB of weights"):
        loaded(path)
    assert loaded(path, **how)[-1].startswith("compiled ")
    limit[0] = planes.mapped
    monkeypatch.setattr(native, "pack_planes", None)
    for attempt in (loaded, sizes):
        with pytest.raises(TooLargeError, match=f"{planes.mapped / 1e6:.1f} MB of weights"):
            attempt(path, **how)
