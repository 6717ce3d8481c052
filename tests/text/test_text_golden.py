"""The ids of every golden prompt and chat, from tokenizer.json and from GGUF metadata, are the
reference's."""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from caldrix.text.chat_template import chat_template_from_gguf, load_chat_template
from caldrix.text.gguf_tokenizer import tokenizer_from_gguf
from caldrix.text.tokenizer import load_tokenizer

LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
SETS = ["llama-tied", "llama-rope3-sharded", "qwen2", "qwen3", "qwen3-moe", "qwen3_5-hybrid"]


def cases(directory: Path) -> list[dict]:
    return json.loads((directory / "golden.json").read_text(encoding="utf8"))["cases"]


@pytest.mark.parametrize("name", SETS)
def test_a_directory_gives_the_reference_ids(golden: Path, name: str) -> None:
    tokenizer = load_tokenizer(golden / name)
    template = load_chat_template(golden / name)
    assert template is not None
    for case in cases(golden / name):
        if case["kind"] == "text":
            assert tokenizer.encode(case["input"]) == case["prompt_ids"]
            assert tokenizer.decode(case["prompt_ids"]) == case["input"]
        else:
            assert template.encode(tokenizer, case["input"]) == case["prompt_ids"]
        assert tokenizer.decode(case["greedy_ids"], False) == case["greedy_text"]


def test_the_image_prompts_are_the_reference_ids(golden: Path) -> None:
    tokenizer = load_tokenizer(golden / "smolvlm")
    for case in cases(golden / "smolvlm"):
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]


def test_the_saved_tokenizer_of_the_demo_model(golden: Path) -> None:
    tokenizer = load_tokenizer(golden / "smollm2-real")
    for case in cases(golden / "smollm2-real"):
        if case["kind"] == "text":
            assert tokenizer.encode(case["input"]) == case["prompt_ids"]
        assert tokenizer.decode(case["greedy_ids"]) == case["greedy_text"]


@pytest.mark.model
def test_the_demo_model_gives_the_reference_ids(
    golden: Path, demo_metadata: Mapping[str, object]
) -> None:
    tokenizer = tokenizer_from_gguf(demo_metadata)
    template = chat_template_from_gguf(demo_metadata)
    assert template is not None
    for case in cases(golden / "smollm2-real"):
        if case["kind"] == "text":
            assert tokenizer.encode(case["input"]) == case["prompt_ids"]
        else:
            assert template.encode(tokenizer, case["input"]) == case["prompt_ids"]
        assert tokenizer.decode(case["greedy_ids"]) == case["greedy_text"]


@pytest.mark.model
def test_the_demo_model_reads_a_long_text_as_the_reference(
    golden: Path, demo_metadata: Mapping[str, object]
) -> None:
    text = LICENSE.read_text(encoding="utf8")
    ids = tokenizer_from_gguf(demo_metadata).encode(text)
    loss = json.loads((golden / "smollm2-real/golden.json").read_text(encoding="utf8"))["loss"]
    first = struct.pack(f"<{loss['tokens']}i", *ids[: loss["tokens"]])
    assert hashlib.sha256(first).hexdigest() == loss["sha256_of_ids"]
    assert ids == load_tokenizer(golden / "smollm2-real").encode(text)
