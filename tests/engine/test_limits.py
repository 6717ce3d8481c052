"""What speeds are judged by: a step's cost by the plan's notes, and limits over the same data."""

from pathlib import Path

import pytest
import tiny

from caldrix import native
from caldrix.engine import limits
from caldrix.engine.limits import Limits, cost_of
from caldrix.engine.load import LoadOptions, load_program

TIED = next(model for model in tiny.MODELS if model.name == "llama-tied")


def test_the_cost_is_that_of_the_weights(tmp_path: Path) -> None:
    shapes = tiny.shapes(TIED.config_json())
    matrices = {name: a * b for name, (a, b) in ((n, s) for n, s in shapes.items() if len(s) == 2)}
    embedding = matrices.pop("model.embed_tokens.weight")  # tied: the output reads all of it
    directory = tiny.write_model(tmp_path / "model", TIED)
    program = load_program(directory, LoadOptions(dtype="f32", threads=1))
    cost = cost_of(program)
    program.close()
    assert cost.weight_bytes == 4 * (sum(matrices.values()) + embedding)
    assert cost.row_flops == 2 * sum(matrices.values())
    assert cost.out_flops == 2 * embedding
    assert cost.prefill_flops(10) == 10 * cost.row_flops + cost.out_flops


def test_the_limits_are_measured_over_data_that_is_always_the_same() -> None:
    row = native.rows()[0]
    one, two = (Limits(limits.BUFFER_UNIT).measure(row, 1, 0.0) for _ in range(2))
    assert list(one) == list(native.LIMITS)
    for name in native.LIMITS:
        assert one[name].per_second > 0
        assert one[name].checksum == two[name].checksum


@pytest.mark.parametrize(
    ("cache", "memory", "wanted"),
    [
        ("32768K\n", 64 << 30, 512 << 20),
        ("", 64 << 30, 512 << 20),
        ("unknown", None, 512 << 20),
        ("524288K", 64 << 30, 2048 << 20),
        ("32768K", 400_000_000, 100_000_000 // limits.BUFFER_UNIT * limits.BUFFER_UNIT),
        ("32768K", 10, limits.BUFFER_UNIT),
    ],
)
def test_the_buffer_is_larger_than_the_last_cache_and_fits(
    cache: str, memory: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "read", lambda path: cache)
    monkeypatch.setattr(limits, "memory_limit", lambda: memory)
    assert limits._buffer_bytes() == wanted
