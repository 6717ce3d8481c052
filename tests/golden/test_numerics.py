"""f32 is exact, bf16 no worse than the reference's own, a row's bits depend on its prefix alone."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import stepper
import tiny

from caldrix.compile.program import Program
from caldrix.engine.load import LoadedModel, LoadOptions, load_model

MARGIN = 2e-3  # below this the reference itself is a coin toss
TOLERANCE = 2e-3  # log-probabilities, f32
HERE = Path(__file__).resolve().parent
SETS = {m["model"]: m["cases"] for m in json.loads((HERE / "tiny.json").read_text())["models"]}
BY_NAME = {m.name: m for m in tiny.MODELS}
LARGE_NAMES = ["llama-tied", "llama-rope3-sharded", "qwen2", "qwen3"]


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(path, LoadOptions(**{"threads": 2} | options), lambda message: None)


@pytest.fixture(scope="module", params=sorted(SETS))
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp(request.param), BY_NAME[request.param])


def check_case(program: Program, case: dict[str, Any], logprobs: list[float]) -> None:
    """Greedy ids up to the first doubtful choice; log-probabilities along the reference's reply."""
    prompt, reply = case["prompt_ids"], case["greedy_ids"]
    sure = next((i for i, m in enumerate(case["margins"]) if m < MARGIN), len(reply))
    assert sure > 0
    assert stepper.greedy(program, prompt, sure) == reply[:sure]
    rows = reference.log_softmax(stepper.all_logits(program, prompt + reply))
    chosen = rows[np.arange(len(prompt) - 1, len(prompt) + len(reply) - 1), reply]
    assert np.abs(chosen - logprobs).max() < TOLERANCE


def test_f32_equals_the_reference(model_dir: Path) -> None:
    name = model_dir.name.removesuffix("0")
    program = load(model_dir, dtype="f32").program
    for case in SETS[name]:
        check_case(program, case, case["logprobs"])
        ids = case["prompt_ids"] + case["greedy_ids"]
        row = reference.log_softmax(stepper.last_logits(program, ids[:-1]))
        assert np.abs(row - case["last_row"]).max() < TOLERANCE
    program.close()


def test_bf16_is_no_further_from_f32_than_the_reference_is(model_dir: Path) -> None:
    name = model_dir.name.removesuffix("0")
    program = load(model_dir, dtype="bf16").program
    ours, theirs = [], []
    for case in SETS[name]:
        prompt, reply = case["prompt_ids"], case["greedy_ids"]
        rows = reference.log_softmax(stepper.all_logits(program, prompt + reply))
        chosen = rows[np.arange(len(prompt) - 1, len(prompt) + len(reply) - 1), reply]
        ours.append(float(np.abs(chosen - case["logprobs"]).mean()))
        theirs.append(case["bf16_mean"])
    assert np.mean(ours) <= np.mean(theirs)
    program.close()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_row_depends_on_its_prefix_alone(model_dir: Path, dtype: str) -> None:
    """Chunks of 1, 7 and 64, other rows beside it, other slots, 1 to 3 threads: the same bits."""
    check_independence(model_dir, dtype)


@pytest.mark.model
def test_a_row_of_the_real_model_depends_on_its_prefix_alone(demo_gguf: Path) -> None:
    check_independence(demo_gguf, "f32")


def check_independence(path: Path, dtype: str) -> None:
    ids = [int(v) for v in (tiny.uniform(7, 150) + 1) * 128]
    other = ids[::-1]
    want = None
    for threads in (1, 2, 3):
        program = load(path, dtype=dtype, threads=threads, n_slots=3).program
        for chunk in (1, 7, 64, 150):
            got = stepper.last_logits(program, ids, slot=chunk % 3, chunk=chunk)
            want = got if want is None else want
            assert np.array_equal(got, want), f"threads {threads}, chunk {chunk}"
        assert np.array_equal(beside_others(program, ids, other), want), f"threads {threads}"
        program.close()


def beside_others(program: Program, ids: list[int], other: list[int]) -> Any:
    """`ids` at slot 1 while slots 0 and 2 take rows in the same steps."""
    logits = None
    for start in range(0, len(ids), 13):
        part = range(start, min(start + 13, len(ids)))
        rows = [(other[i], i, 0) for i in part[:5]] if start == 0 else []
        mine = len(rows)
        rows += [(ids[i], i, 1) for i in part] + [(other[i], i, 2) for i in part]
        logits = stepper.step(program, rows, [0, mine + len(part) - 1])[1]
    return logits


@pytest.mark.parametrize("name", LARGE_NAMES)
def test_the_larger_set(name: str, golden: Path) -> None:
    cases = json.loads((golden / name / "golden.json").read_text(encoding="utf8"))["cases"]
    model = load(golden / name, dtype="f32", max_context=1024)
    for case in cases:
        check_case(model.program, case, case["greedy_logprobs"])
        if case["kind"] == "text":
            assert model.tokenizer.encode(case["input"]) == case["prompt_ids"]
        else:
            assert model.chat_template is not None
            ids = model.chat_template.encode(model.tokenizer, case["input"])
            assert ids == case["prompt_ids"]
    model.program.close()


@pytest.fixture(scope="module")
def real(demo_gguf: Path) -> LoadedModel:
    return load(demo_gguf, max_out=64)


@pytest.mark.model
def test_the_real_model_equals_the_reference(real: LoadedModel, golden: Path) -> None:
    text = (golden / "smollm2-real" / "golden.json").read_text(encoding="utf8")
    cases = json.loads(text)["cases"]
    for case in cases:
        check_case(real.program, case, case["greedy_logprobs"])


# The reference's mean loss on the first 2048 tokens of the Apache License 2.0 as Debian ships it
# (LICENSE is that text), weights dequantised to float32.
LICENSE_LOSS = 2.624377739992127
LICENSE_IDS = "9bb445cfdcca7f717cc7047f3b2e3a00b3c490e91157580355c2e8a2424c91ca"


@pytest.mark.model
def test_the_loss_on_a_text_equals_the_reference(real: LoadedModel) -> None:
    text = (HERE.parents[1] / "LICENSE").read_text(encoding="utf8")
    ids = real.tokenizer.encode(text)[:2048]
    assert hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest() == LICENSE_IDS
    rows = reference.log_softmax(stepper.all_logits(real.program, ids))
    loss = -rows[np.arange(len(ids) - 1), ids[1:]].mean()
    assert abs(loss - LICENSE_LOSS) < 1e-3
