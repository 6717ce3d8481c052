"""The native model: what it refuses, and that its own prefix alone decides the bits of a row."""

import mmap
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
import tiny_plan
from tiny_plan import BF16, CONTEXT, MAX_OUT, MAX_ROWS, SLOTS, VOCAB, TinyPlan

from caldrix import native
from caldrix.errors import EngineError, TooLargeError

HERE = Path(__file__).resolve().parent
PROMPT = [5, 90, 17, 17, 3, 44, 71, 2, 60, 33, 8, 95, 0, 21, 50, 13, 77]


class Runner:
    """A tiny plan's model with its logits."""

    def __init__(self, plan: TinyPlan, row: str | None = None, n_threads: int = 1) -> None:
        self.arenas = plan.arenas()
        self.model = native.Model(plan.image(), self.arenas, row, n_threads)
        start = plan.logits[0]["offset"] // 4
        floats = np.frombuffer(self.arenas[1], np.float32)
        self.logits = floats[start : start + MAX_OUT * VOCAB].reshape(MAX_OUT, VOCAB)

    def rows(
        self, rows: Sequence[tuple[int, int, int]], out: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        """One step of (token, position, slot) rows; the logits of `out`."""
        tokens, positions, slots = zip(*rows, strict=True)
        self.model.step(tokens, positions, slots, out, None)
        return self.logits[: len(out)].copy()

    def prompt(self, ids: Sequence[int], chunk: int, slot: int = 0) -> npt.NDArray[np.float32]:
        """The logits after `ids`, computed `chunk` rows at a time."""
        logits = np.empty(0, np.float32)
        for start in range(0, len(ids), chunk):
            part = [(t, start + i, slot) for i, t in enumerate(ids[start : start + chunk])]
            logits = self.rows(part, [len(part) - 1])[0]
        return logits


@pytest.fixture
def runner() -> Iterator[Runner]:
    made = Runner(TinyPlan())
    yield made
    made.model.close()


# --- bits


@pytest.mark.parametrize("row", native.rows())
@pytest.mark.parametrize(
    ("cache_type", "int8"), [(tiny_plan.F32, False), (BF16, False), (BF16, True)]
)
def test_threads_chunks_slots_and_company_leave_the_bits_alone(
    row: str, cache_type: int, int8: bool
) -> None:
    plan = TinyPlan(cache_type=cache_type, int8=int8)
    expected = Runner(plan, row).prompt(PROMPT, len(PROMPT))
    assert np.isfinite(expected).all()
    assert expected.std() > 0.1
    for n_threads in (1, 2, 5):
        runner = Runner(plan, row, n_threads)
        for chunk in (1, 7, len(PROMPT)):
            for slot in range(SLOTS):
                assert runner.prompt(PROMPT, chunk, slot).tobytes() == expected.tobytes()
        beside = [(t, i, 1) for i, t in enumerate(PROMPT)] + [(9, 0, 0), (9, 3, 2), (1, 9, 2)]
        logits = runner.rows(beside, [3, len(PROMPT) - 1, len(PROMPT) + 1])
        assert logits[1].tobytes() == expected.tobytes()


def test_rows_of_instructions_agree() -> None:
    plan = TinyPlan()
    results = [Runner(plan, row).prompt(PROMPT, 5) for row in native.rows()]
    for result in results:
        np.testing.assert_allclose(result, results[0], rtol=0, atol=2e-5)


def test_models_run_side_by_side() -> None:
    plans = [TinyPlan(seed) for seed in (1, 2)]
    expected = [Runner(plan).prompt(PROMPT, 5).tobytes() for plan in plans]
    assert expected[0] != expected[1]
    found: list[set[bytes]] = [set(), set()]

    def work(index: int) -> None:
        runner = Runner(plans[index], None, 2)
        for _ in range(30):
            found[index].add(runner.prompt(PROMPT, 5).tobytes())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{expected[0]}, {expected[1]}]


# --- picks


def test_picks_are_of_their_own_rows(runner: Runner) -> None:
    rows = [(t, i % 8, i // 8) for i, t in enumerate(PROMPT)]
    tokens, positions, slots = (np.array(column, np.uint32) for column in zip(*rows, strict=True))
    out = [2, 7, 8, 16]
    picks = runner.model.step(tokens, positions, slots, out, [native.Sampling()] * 4)
    assert [pick.token for pick in picks] == runner.logits[:4].argmax(axis=1).tolist()
    assert all(pick.finite for pick in picks)
    best = picks[3].token
    greedy = native.Sampling(repetition_penalty=1e6, recent=[best] * 300)
    again = runner.model.step([16], [8], [2], [0], [greedy])
    logits = runner.logits[0].copy()
    logits[best] = logits[best] * 1e6 if logits[best] < 0 else logits[best] / 1e6
    assert again == [native.Pick(int(logits.argmax()), True)]


def test_logits_that_are_not_finite_give_no_token() -> None:
    plan = TinyPlan()
    last_norm = plan.records[-2][1]["weight"]["offset"]
    plan.weights[last_norm : last_norm + 4] = np.float32(np.nan).tobytes()
    scored = native.Sampling(scored=native.Scored(3))
    (pick,) = Runner(plan).model.step([1], [0], [0], [0], [scored])
    assert not pick.finite
    assert pick.logprob == native.TokenLogprob(2**32 - 1, 0.0, [])


def adjusted(**fields: Any) -> native.Sampling:
    return native.Sampling(adjust=native.Adjust(**fields))


def test_adjustments_are_of_their_own_rows(runner: Runner) -> None:
    rows = ([1, 2, 3, 4], [0, 1, 2, 3], [0] * 4, range(4))
    plain = [pick.token for pick in runner.model.step(*rows, [native.Sampling()] * 4)]
    logits = runner.logits[:4].copy()
    bias = np.array([(plain[1], -100.0), (7, 50.0)], native.BIAS)
    repeated = np.array([plain[2]] * 3, np.uint32)
    sampling = [
        native.Sampling(),
        adjusted(bias=bias),
        adjusted(generated=repeated, presence_penalty=1.0, frequency_penalty=2.0),
        adjusted(forbidden=[plain[3], VOCAB, -1, 10**9]),
    ]
    picks = [pick.token for pick in runner.model.step(*rows, sampling)]
    logits[2, plain[2]] -= 7
    logits[3, plain[3]] = -np.inf
    assert picks == [plain[0], 7, int(logits[2].argmax()), int(logits[3].argmax())]


def test_log_probabilities_are_of_the_raw_logits_whatever_the_sampling(runner: Runner) -> None:
    rows = ([1, 2, 3, 4], [0, 1, 2, 3], [0] * 4, range(4))
    bias = native.Adjust(bias=np.array([(9, 100.0)], native.BIAS), forbidden=[3])
    sampling = [
        native.Sampling(temperature=2.0, top_k=2, adjust=bias, scored=native.Scored(20)),
        native.Sampling(),
        native.Sampling(scored=native.Scored(0)),
        native.Sampling(scored=native.Scored(3, token=50)),
    ]
    picks = runner.model.step(*rows, sampling)
    logits = runner.logits[:4]
    expected = reference.log_softmax(logits)
    assert picks[1].logprob is None
    for row, n_top in [(0, 20), (2, 0), (3, 3)]:
        found = picks[row].logprob
        assert found is not None
        assert found.token_id == (50 if row == 3 else picks[row].token)
        assert found.logprob == pytest.approx(expected[row, found.token_id], abs=1e-6)
        top = reference.top_tokens(logits[row], n_top)
        assert [token for token, _ in found.top] == top
        assert [p for _, p in found.top] == pytest.approx(expected[row, top].tolist(), abs=1e-6)
    assert picks[0].token == 9
    assert runner.model.step(*rows, [native.Sampling()] * 4)[0].logprob is None


def test_the_bits_of_a_log_probability_do_not_depend_on_company(runner: Runner) -> None:
    scored = [native.Sampling(scored=native.Scored(5))]
    (alone,) = runner.model.step(PROMPT, range(len(PROMPT)), [0] * len(PROMPT), [16], scored)
    for n_threads in (1, 3):
        other = Runner(TinyPlan(), None, n_threads)
        beside = [*PROMPT, 9, 9, 9], [*range(len(PROMPT)), 0, 1, 2], [1] * len(PROMPT) + [2] * 3
        picks = other.model.step(*beside, [3, 16, 19], scored * 3)
        assert picks[1] == alone


# --- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": []}, "as many positions and slots"),
        ({"tokens": [1, 2, 3]}, "as many positions and slots"),
        ({"tokens": [VOCAB, 1]}, "row 0: token 96: the vocabulary has 96"),
        ({"positions": [0, CONTEXT]}, "row 1: position 80: the context is 80"),
        ({"slots": [0, SLOTS]}, "row 1: slot 3: there are 3"),
        ({"positions": [1, 1]}, "row 1: position 1 of slot 0 follows position 1"),
        ({"positions": [1, 0]}, "row 1: position 0 of slot 0 follows position 1"),
        ({"out_rows": [2]}, "output 0: row 2"),
        ({"out_rows": [1, 1], "sampling": None}, "output 1: row 1: takes ascending rows"),
        ({"out_rows": [1, 0], "sampling": None}, "output 1: row 0: takes ascending rows"),
        ({"out_rows": range(MAX_OUT + 1)}, "the plan takes 24 and 8"),
        ({"sampling": []}, "0 samplings for 1 output rows"),
        ({"sampling": [native.Sampling(temperature=-1)]}, "temperature"),
        ({"sampling": [native.Sampling(temperature=float("nan"))]}, "temperature"),
        ({"sampling": [native.Sampling(top_p=0)]}, "top_p"),
        ({"sampling": [native.Sampling(min_p=1.5)]}, "min_p"),
        ({"sampling": [native.Sampling(repetition_penalty=0)]}, "repetition_penalty"),
        ({"sampling": [native.Sampling(recent=[VOCAB])]}, "recent token 96"),
        ({"sampling": [adjusted(bias=np.array([(VOCAB, 1)], native.BIAS))]}, "bias token 96"),
        ({"sampling": [adjusted(bias=np.array([(1, np.nan)], native.BIAS))]}, "bias nan"),
        ({"sampling": [adjusted(generated=np.array([VOCAB], np.uint32))]}, "generated token 96"),
        ({"sampling": [adjusted(presence_penalty=float("inf"))]}, "penalties inf and 0"),
        ({"sampling": [adjusted(frequency_penalty=float("nan"))]}, "penalties 0.0* and nan"),
        ({"sampling": [adjusted(forbidden=range(VOCAB))]}, "a mask that allows no token"),
        ({"sampling": [native.Sampling(scored=native.Scored(21))]}, "21 most likely tokens"),
        ({"sampling": [native.Sampling(scored=native.Scored(1, VOCAB))]}, "scored token 96"),
    ],
)
def test_a_step_that_does_not_check_is_refused(
    runner: Runner, changes: dict[str, Any], message: str
) -> None:
    good: dict[str, Any] = {
        "tokens": [1, 2], "positions": [0, 1], "slots": [0, 0], "out_rows": [1],
        "sampling": [native.Sampling()],
    }  # fmt: skip
    assert len(runner.model.step(**good)) == 1
    with pytest.raises(EngineError, match=message):
        runner.model.step(**(good | changes))
    assert len(runner.model.step(**good)) == 1


def test_a_step_takes_1_to_max_rows(runner: Runner) -> None:
    full = range(MAX_ROWS)
    assert runner.model.step([0] * MAX_ROWS, full, [0] * MAX_ROWS, [], []) == []
    with pytest.raises(EngineError, match="0 rows: takes 1 to 24"):
        runner.model.step([], [], [], [], None)
    with pytest.raises(EngineError, match="the plan takes 24 and 8"):
        runner.model.step([0] * 25, range(25), [0] * 25, [], None)


EMBED, ANGLES, NORM, QKV, STORE, ATTENTION, OUT, MLP = 0, 1, 2, 3, 4, 5, 6, 8
ACTIVATION = {"arena": 1, "type": 0, "offset": 0}


@pytest.mark.parametrize(
    ("index", "field", "value", "message"),
    [
        (EMBED, "dim", 0, "embed.*dim: 0"),
        (EMBED, "vocab", VOCAB - 1, "vocab: 95: takes the plan's 96"),
        (EMBED, "vocab", 2**30, "end past arena 3"),
        (EMBED, "y_stride", 72, "stride 72: takes multiples of 16"),
        (EMBED, "y_stride", 48, "stride 48"),
        (EMBED, "y", {"arena": 3, "type": 0, "offset": 0}, "arena 3: activations are in arena 1"),
        (EMBED, "y", {"arena": 1, "type": 30, "offset": 0}, "activations are f32"),
        (EMBED, "y", {"arena": 1, "type": 0, "offset": 32}, "offset 32: takes multiples of 64"),
        (EMBED, "y", {"arena": 1, "type": 0, "offset": 2**64 - 64}, "end past arena 1"),
        (EMBED, "table", ACTIVATION, "arena 1: weights are in arenas 3 to 4"),
        (EMBED, "table", {"arena": 5, "type": 0, "offset": 0}, "arena 5"),
        (EMBED, "table", {"arena": 3, "type": 999, "offset": 0}, "type 999"),
        (EMBED, "table", {"arena": 3, "type": 12, "offset": 0}, "q4_k takes multiples of 256"),
        (EMBED, "head", {"op": 1, "rows": 1}, "step's rows only"),
        (ANGLES, "scale", float("inf"), "scale: inf"),
        (ANGLES, "inv_freq", {"arena": 4, "type": 0, "offset": 3}, "multiples of 4"),
        (NORM, "weight", {"arena": 3, "type": 30, "offset": 0}, "type 30: takes f32"),
        (NORM, "y", ACTIVATION, "y: overlaps x"),
        (QKV, "n_parts", 0, "n_parts: 0: takes 1 to 3"),
        (QKV, "n_parts", 4, "n_parts: 4: takes 1 to 3"),
        (QKV, "residual", ACTIVATION, "residual: goes with one part, not 3"),
        (STORE, "rope_dim", 15, "rope_dim: 15"),
        (STORE, "rope_dim", 18, "rope_dim: 18"),
        (STORE, "style", 2, "style: 2"),
        (STORE, "n_kv_heads", 3, "n_heads: 4: not a multiple of n_kv_heads 3"),
        (STORE, "n_kv_heads", 0, "n_kv_heads: 0"),
        (STORE, "context", CONTEXT - 1, "context: 79"),
        (STORE, "n_slots", SLOTS - 1, "n_slots: 2"),
        (STORE, "k_cache", {"arena": 2, "type": 8, "offset": 0}, "type 8: takes f32 or bf16"),
        (STORE, "k_cache", {"arena": 3, "type": 0, "offset": 0}, "caches are in arena 2"),
        (STORE, "v_cache", {"arena": 2, "type": 0, "offset": 0}, "overlaps"),
        (ATTENTION, "context", 2**30, "end past arena 2"),
        (ATTENTION, "n_heads", 2**31, "n_heads: 2147483648"),
        (OUT, "residual", {"arena": 1, "type": 0, "offset": 64}, "overlaps residual"),
        (MLP, "act", 1, "act: 1"),
        (MLP, "up", {"arena": 4, "type": 8, "offset": 2**40}, "end past arena 4"),
        (9, "head", {"op": 0}, "code 0 is not known"),
        (9, "head", {"op": 77}, "code 77 is not known"),
        (10, "head", {"op": 8, "rows": 0}, "output rows only"),
        (11, "head", {"op": 3, "rows": 2}, "rows: 2"),
    ],
)
def test_an_op_that_does_not_check_is_refused_by_name(
    index: int, field: str, value: Any, message: str
) -> None:
    plan = TinyPlan()
    plan.records[index][1][field] = value
    with pytest.raises(EngineError, match=f"^plan: op {index} .*{message}"):
        Runner(plan)


QUANTIZE, GATED_INT8, DOWN_INT8 = 11, 12, 14  # of the second block


@pytest.mark.parametrize(
    ("index", "field", "value", "message"),
    [
        (QUANTIZE, "dim", 48, "quantize.*dim: 48: takes multiples of 32"),
        (QUANTIZE, "dim", 0, "dim: 0"),
        (QUANTIZE, "y_stride", 16, "stride 16: takes multiples of 16 floats from 24"),
        (QUANTIZE, "y", ACTIVATION | {"offset": 2**40}, "end past arena 1"),
        (GATED_INT8, "gate", {"arena": 3, "type": 0, "offset": 0}, "gate: f32: does not go with"),
        (GATED_INT8, "up", {"arena": 3, "type": 30, "offset": 0}, "up: bf16: does not go with"),
        (GATED_INT8, "x_stride", 16, "stride 16: takes multiples of 16 floats from 24"),
        (GATED_INT8, "head", {"op": 5}, "gated_linear.*stride 32"),  # its x is too narrow for f32
        (DOWN_INT8, "k", 48, "q8_0 takes multiples of 32"),
        (DOWN_INT8, "n_parts", 2, "residual: goes with one part"),
    ],
)
def test_an_int8_op_that_does_not_check_is_refused_by_name(
    index: int, field: str, value: Any, message: str
) -> None:
    plan = TinyPlan(int8=True)
    Runner(plan)
    plan.records[index][1][field] = value
    with pytest.raises(EngineError, match=f"^plan: op {index} .*{message}"):
        Runner(plan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": 1}, "magic"),
        ({"version": 2}, "version: 2: this build takes 1"),
        ({"n_ops": 15}, "n_ops: 15"),
        ({"n_ops": 2**32 - 1}, "n_ops"),
        ({"n_arenas": 4}, "n_arenas: 4: 5 were given"),
        ({"max_rows": 0}, "max_rows: 0"),
        ({"max_rows": MAX_ROWS + 1}, "overlaps x"),
        ({"max_out": MAX_OUT + 1}, "end past arena"),
        ({"max_out": MAX_ROWS + 1}, "max_out: 25"),
        ({"vocab": 0}, "vocab: 0"),
        ({"n_slots": 0}, "n_slots: 0"),
        ({"context": 0}, "context: 0"),
        ({"logits": {"arena": 2, "type": 0, "offset": 0}}, "logits: arena 2"),
    ],
)
def test_a_head_that_does_not_check_is_refused(changes: dict[str, Any], message: str) -> None:
    plan = TinyPlan()
    image = plan.head(**changes) + plan.image()[native.ENUMS["CX_OP_BYTES"] :]
    with pytest.raises(EngineError, match=f"^plan: .*{message}"):
        native.Model(image, plan.arenas(), None, 1)


def test_other_arguments_are_refused() -> None:
    plan = TinyPlan()
    image, arenas = plan.image(), plan.arenas()
    for short in (b"", image[:255], image[:-1], image + b"\0"):
        with pytest.raises(EngineError, match=r"^plan: "):
            native.Model(short, arenas, None, 1)
    with pytest.raises(EngineError, match="not a row of this build"):
        native.Model(image, arenas, "x86-64-v9", 1)
    for n_threads in (0, 4097):
        with pytest.raises(EngineError, match=f"{n_threads} threads: takes 1 to 4096"):
            native.Model(image, arenas, None, n_threads)
    shifted = [*arenas[:2], memoryview(native.allocate(2**20))[4:], *arenas[3:]]
    with pytest.raises(EngineError, match="arena 2 is not 64-byte aligned"):
        native.Model(image, shifted, None, 1)
    with pytest.raises(EngineError, match="past arena 3 of 0 bytes"):
        native.Model(image, [*arenas[:3], None, arenas[4]], None, 1)


def test_damaged_plans_are_refused_or_run() -> None:
    """In a process of its own: what the checker lets through by mistake ends it."""
    command = [sys.executable, str(HERE / "fuzz_plan.py"), "1", "1500"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    refused, ran = (int(part.split()[1]) for part in done.stdout.split(","))
    assert refused + ran == 1500
    assert refused > 300
    assert ran > 300


# --- threads and life


def test_cancel_from_another_thread_ends_a_step() -> None:
    runner = Runner(TinyPlan(), None, 2)
    runner.model.cancel()  # nothing runs: no effect
    expected = runner.prompt(PROMPT, len(PROMPT)).tobytes()
    seen: list[Exception] = []

    def work() -> None:
        deadline = time.monotonic() + 30
        try:
            while time.monotonic() < deadline:
                runner.prompt(PROMPT, len(PROMPT))
        except native.Cancelled as error:
            seen.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        runner.model.cancel()
    thread.join()
    assert [str(error) for error in seen] == ["the step was cancelled"]
    assert runner.prompt(PROMPT, len(PROMPT)).tobytes() == expected


def test_an_idle_model_uses_no_processor_time() -> None:
    runner = Runner(TinyPlan(), None, 3)
    runner.prompt(PROMPT, 1)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.02


def test_close_lets_go_of_the_arenas() -> None:
    plan = TinyPlan()
    memory = native.allocate(plan.activations)
    arenas = plan.arenas()
    arenas[1] = memory
    model = native.Model(plan.image(), arenas, None, 2)
    model.step([1], [0], [0], [0], None)
    with pytest.raises(BufferError):
        memory.close()
    model.close()
    model.close()
    model.cancel()
    memory.close()
    with pytest.raises(EngineError, match="the model is closed"):
        model.step([1], [0], [0], [0], None)


# --- memory and types


def test_allocated_memory_is_zero_aligned_and_private() -> None:
    memory = native.allocate(3 * mmap.PAGESIZE)
    assert memory[:] == bytes(3 * mmap.PAGESIZE)
    assert np.frombuffer(memory, np.uint8).ctypes.data % mmap.PAGESIZE == 0
    assert len(native.allocate(0)) == 1


@pytest.mark.parametrize("n_bytes", [2**62, 2**64])
def test_memory_that_cannot_be_had_is_refused_with_its_size(n_bytes: int) -> None:
    with pytest.raises(TooLargeError, match=r"cannot get \d+\.\d TB of memory \(.+\); use a small"):
        native.allocate(n_bytes)


def test_quant_types_decode_by_name_and_by_row() -> None:
    types = {kind.name: kind for kind in native.quant_types()}
    assert types["q8_0"] == native.QuantType("q8_0", 8, 32, 34, takes_int8=True)
    block = np.array([0.5], np.float16).tobytes() + np.arange(-16, 16, dtype=np.int8).tobytes()
    for row in (None, *native.rows()):
        values = native.decode(8, block, 32, row)
        assert values.tolist() == (np.arange(-16, 16) / 2).tolist()
    for n_elements, buffer in ((32, block[:-1]), (31, block), (-32, block), (64, block)):
        with pytest.raises(EngineError, match="do not fit"):
            native.decode(8, buffer, n_elements)
    with pytest.raises(EngineError, match="quant type 99 is not in the table"):
        native.decode(99, block, 32)
    with pytest.raises(EngineError, match="row 'nonesuch' cannot decode"):
        native.decode(8, block, 32, "nonesuch")


def test_a_record_is_packed_by_field_names() -> None:
    record = native.pack_op("cx_op_rms_norm", {"head": {"op": 3}, "dim": 7, "x": {"offset": 64}})
    assert len(record) == native.ENUMS["CX_OP_BYTES"]
    assert record[:2] == b"\3\0"
    with pytest.raises(KeyError):
        native.pack_op("cx_op_rms_norm", {"dimension": 7})


def test_a_missing_library_is_one_line() -> None:
    code = (
        "import sys\nsys.modules['caldrix._native'] = None\n"
        "from caldrix.errors import CaldrixError\n"
        "try:\n    import caldrix.native\n"
        "except CaldrixError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=HERE.parents[1], text=True, capture_output=True, timeout=60)
    assert done.stdout.startswith("the native library cannot be loaded (")
    assert done.stdout.endswith("build it with: python tools/build_native.py --inplace\n")
    assert done.stdout.count("\n") == 1
