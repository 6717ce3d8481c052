"""The import rule and the size caps hold, and their checkers catch a breach."""

import subprocess
import sys
from pathlib import Path

import layers
import pytest
import sizes

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("tool", ["layers", "sizes"])
def test_the_tree_passes(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / f"{tool}.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("unit", "file", "name"),
    [
        ("text", "text/tokenizer.py", "caldrix.formats.gguf"),
        ("formats", "formats/gguf.py", "caldrix.engine.engine"),
        ("engine", "engine/engine.py", "caldrix.hub.resolve"),
        ("compile", "compile/lower.py", "asyncio"),
        ("formats", "formats/gguf.py", "tokenizers"),
        ("engine", "engine/engine.py", "requests"),
        ("compile", "compile/plan.py", "caldrix._native"),
    ],
)
def test_a_breach_is_named(unit: str, file: str, name: str) -> None:
    assert layers.judge(unit, file, name)


@pytest.mark.parametrize(
    ("unit", "file", "name"),
    [
        ("cli", "cli/run.py", "caldrix.hub.resolve"),
        ("compile", "compile/lower.py", "caldrix.models.llama"),
        ("text", "text/tokenizer.py", "tokenizers"),
        ("native", "native.py", "caldrix._native"),
        ("engine", "engine/engine.py", "asyncio"),
    ],
)
def test_what_is_allowed_passes(unit: str, file: str, name: str) -> None:
    assert layers.judge(unit, file, name) is None


def test_a_long_function_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long.py").write_text("def f():\n" + "    x = 1\n" * 60)
    monkeypatch.setattr(sizes, "ROOT", tmp_path)
    assert any(
        length > cap and what.endswith(":f")
        for what, length, cap in sizes.python_sizes(tmp_path / "long.py")
    )
