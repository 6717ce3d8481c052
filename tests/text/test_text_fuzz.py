"""Damaged tokenizer files and metadata: each is refused in one line, or loads and works."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_tokenizers as small

from caldrix.errors import RefusedError
from caldrix.text.gguf_tokenizer import tokenizer_from_gguf
from caldrix.text.tokenizer import Tokenizer, load_tokenizer

TEXTS = ["user <|a|> user", "日本 🫠\n", "", "<0x0A> </s>"]
VALUES = [None, True, -1, 0, 5, 2**31, 2**70, 1.5, "", "a", "<|a|>", [], {}, ["a"], [[]], "\ud800"]


def works_or_refuses(build: Callable[[], Tokenizer]) -> bool:
    """Whether it loaded."""
    try:
        tokenizer = build()
        for text in TEXTS:
            ids = tokenizer.encode(text)
            tokenizer.decode([*ids, *tokenizer.encode_text(text), tokenizer.vocab_size], False)
    except RefusedError as error:
        message = str(error)
        assert message.isprintable(), message
        assert len(message) < 500
        return False
    return True


def damaged(value: Any, draw: random.Random) -> Any:
    """A JSON value with one thing in it changed, at a random depth."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice([*value])
        if draw.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: damaged(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.85:
        i = draw.randrange(len(value))
        if draw.random() < 0.2:
            return value[:i] + value[i + draw.choice([-1, 1]) :]
        return [*value[:i], damaged(value[i], draw), *value[i + 1 :]]
    return draw.choice(VALUES)


@pytest.mark.parametrize("kind", small.KINDS)
def test_tokenizer_files_with_a_changed_value(tmp_path: Path, kind: str) -> None:
    draw, n_loaded = random.Random(1), 0
    original = json.loads(small.KINDS[kind]().to_str())
    for n in range(150):
        path = tmp_path / str(n) / "tokenizer.json"
        path.parent.mkdir()
        path.write_text(json.dumps(damaged(original, draw)), encoding="utf8")
        n_loaded += works_or_refuses(lambda: load_tokenizer(path.parent))  # noqa: B023
    assert 0 < n_loaded < 150


def test_tokenizer_files_with_changed_bytes(tmp_path: Path) -> None:
    draw = random.Random(2)
    original = small.byte_fallback().to_str().encode()
    path = tmp_path / "tokenizer.json"
    for _ in range(150):
        data = bytearray(original[: draw.choice([len(original), draw.randrange(len(original))])])
        for _ in range(draw.randrange(3)):
            i = draw.randrange(len(data) + 1)
            data[i : i + draw.randrange(4)] = draw.randbytes(draw.randrange(4))
        path.write_bytes(bytes(data))
        works_or_refuses(lambda: load_tokenizer(tmp_path))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_metadata_with_a_changed_value(kind: str) -> None:
    draw, n_loaded = random.Random(3), 0
    tokens = ["<unk>", "<s>", "</s>", *"▁Ġuser<|a|>", "us", "er", "▁us", "<0x0A>"]
    tokens = list(dict.fromkeys(tokens))
    original = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [1] * (len(tokens) - 4) + [6],
        "tokenizer.ggml.merges": ["u s", "e r"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.precompiled_charsmap": [0, 4, 0, 0] + [0] * 1025,
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }
    for _ in range(400):
        metadata = damaged(original, draw)
        if isinstance(metadata, dict):
            n_loaded += works_or_refuses(lambda: tokenizer_from_gguf(metadata))  # noqa: B023
    assert 0 < n_loaded < 400
