"""Models made to cost more than they weigh: what damage drawn at random does not hit.

Each is one function that returns its files and what must come of them; run by load_worker.py under
the same limits as the damaged models, the memory being the attack's own size plus 64 MB.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tiny
from load_bases import Base, Keys, Tensors, blocks, gguf_bases, safetensors_bases
from load_cases import Case, Expect
from model_files import ARRAY, F32, I32, STRING, U8, U32, header, key, text, u32, u64

LLAMA, QWEN3, QWEN2 = gguf_bases()
DIRECTORY = safetensors_bases()[0]


@dataclass(frozen=True)
class Attack:
    base: Base
    make: Callable[[], Case]


ATTACKS: dict[str, Attack] = {}


def attack(base: Base) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def add(make: Callable[[], Case]) -> Callable[[], Case]:
        ATTACKS[make.__name__] = Attack(base, make)
        return make

    return add


def refused(base: Base, files: dict[str, bytes]) -> Case:
    return Case(base.changed(files), Expect.REFUSED)


# --- GGUF ---------------------------------------------------------------------------------------


def gguf(base: Base, keys: Keys, tensors: Tensors | None = None) -> Case:
    return Case(base.with_gguf(base.keys | keys, tensors or base.tensors), Expect.REFUSED)


def strings(values: list[str]) -> tuple[int, object]:
    return ARRAY, (STRING, values)


def gguf_list(base: Base, name: str, item_type: int, count: int, items: bytes) -> Case:
    """One long list in the place of another, put right behind the header."""
    keys = {key: value for key, value in base.keys.items() if key != name}
    files = base.with_gguf(keys, base.tensors)
    raw = files[base.model]
    entry = key(name, ARRAY, u32(item_type) + u64(count) + items)
    filler = len(key("x", STRING, text("")))  # tensors follow on a multiple of 32
    entry += key("x", STRING, text("y" * (-(len(entry) + filler) % 32)))
    files[base.model] = header(len(base.tensors), len(keys) + 2, base.version) + entry + raw[24:]
    return Case(files, Expect.REFUSED)


@attack(LLAMA)
def more_tokens_than_rows() -> Case:
    tokens = b"".join(text(f"t{i}") for i in range(300_000))
    return gguf_list(LLAMA, "tokenizer.ggml.tokens", STRING, 300_000, tokens)


@attack(QWEN2)
def more_scores_than_rows() -> Case:
    return gguf_list(QWEN2, "tokenizer.ggml.scores", F32, 2_000_000, bytes(8_000_000))


@attack(LLAMA)
def more_types_than_rows() -> Case:
    return gguf_list(LLAMA, "tokenizer.ggml.token_type", U8, 4_000_000, bytes(4_000_000))


@attack(LLAMA)
def more_merges_than_tokens_have() -> Case:
    return gguf_list(LLAMA, "tokenizer.ggml.merges", STRING, 200_000, text("h e") * 200_000)


@attack(QWEN2)
def a_character_map_of_numbers() -> Case:
    name = "tokenizer.ggml.precompiled_charsmap"
    return gguf_list(QWEN2, name, U8, 4_000_000, bytes(4_000_000))


@attack(QWEN3)
def a_token_with_a_million_cuts() -> Case:
    tokens = list(QWEN3.keys["tokenizer.ggml.tokens"][1][1])  # type: ignore[index]
    tokens[-1] = "ab" * 500_000
    types = (ARRAY, (I32, [1] * len(tokens)))
    return gguf(
        QWEN3, {"tokenizer.ggml.tokens": strings(tokens), "tokenizer.ggml.token_type": types}
    )


@attack(QWEN3)
def tokens_that_join_in_every_way() -> Case:
    n = 900
    hidden = QWEN3.tensors["token_embd.weight"][1][0]
    rows = (8, [hidden, n], blocks(random.Random(1), 8, hidden * n))
    keys: Keys = {"tokenizer.ggml.tokens": strings(["a" * (i + 1) for i in range(n)])}
    keys["tokenizer.ggml.scores"] = (ARRAY, (F32, [0.0] * n))
    keys["tokenizer.ggml.token_type"] = (ARRAY, (I32, [1] * n))
    return gguf(QWEN3, keys, QWEN3.tensors | {"token_embd.weight": rows})


@attack(LLAMA)
def a_thousand_layers() -> Case:
    return gguf(LLAMA, {"llama.block_count": (U32, 1024)})


@attack(LLAMA)
def a_wide_model_without_its_tensors() -> Case:
    keys: Keys = {"llama.attention.head_count": (U32, 1 << 20)}
    keys |= {"llama.attention.head_count_kv": (U32, 1 << 20)}
    keys |= {"llama.attention.key_length": (U32, 4096), "llama.context_length": (U32, 1 << 30)}
    return gguf(LLAMA, keys | {"llama.feed_forward_length": (U32, 1 << 20)})


@attack(LLAMA)
def a_context_of_a_billion() -> Case:
    case = gguf(LLAMA, {"llama.context_length": (U32, 1 << 30)})
    return Case(case.files, Expect.ANY)  # what is allocated follows --ctx


# --- directories --------------------------------------------------------------------------------


def with_tokenizer(change: Callable[[dict[str, Any]], None]) -> Case:
    document = json.loads(DIRECTORY.files["tokenizer.json"])
    change(document)
    return refused(DIRECTORY, {"tokenizer.json": json.dumps(document).encode()})


@attack(DIRECTORY)
def a_normalizer_that_doubles() -> Case:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}

    def change(document: dict[str, Any]) -> None:
        document["normalizer"] = {"type": "Sequence", "normalizers": [step] * 40}
        document["added_tokens"][0] |= {"content": "aaaa", "normalized": True}

    return with_tokenizer(change)


@attack(DIRECTORY)
def more_vocabulary_than_rows() -> Case:
    entries = {f"t{i}": 300 + i for i in range(300_000)}
    return with_tokenizer(lambda document: document["model"]["vocab"].update(entries))


@attack(DIRECTORY)
def added_tokens_without_end() -> Case:
    def change(document: dict[str, Any]) -> None:
        entry = document["added_tokens"][0]
        added = [entry | {"id": 300 + i, "content": f"<t{i}>"} for i in range(60_000)]
        document["added_tokens"] += added

    return with_tokenizer(change)


@attack(DIRECTORY)
def lists_in_the_tokenizer() -> Case:
    lists = b"[" + b"[]," * 1_500_000 + b"[]]"
    raw = b'{"version": "1.0", "model": {"type": "BPE", "vocab": ' + lists + b"}}"
    return refused(DIRECTORY, {"tokenizer.json": raw})


@attack(DIRECTORY)
def lists_in_the_configuration() -> Case:
    raw = b'{"a": [' + b"[]," * 1_500_000 + b"[]]}"
    return refused(DIRECTORY, {"tokenizer_config.json": raw})


@attack(DIRECTORY)
def lists_in_the_model_configuration() -> Case:
    config = json.loads(DIRECTORY.files["config.json"]) | {"architectures": "@"}
    raw = json.dumps(config).encode().replace(b'"@"', b"[" + b"[]," * 1_500_000 + b"[]]")
    return refused(DIRECTORY, {"config.json": raw})


@attack(DIRECTORY)
def a_template_of_many_words() -> Case:
    return refused(DIRECTORY, {"chat_template.jinja": b"{{a}}" * 50_000})


@attack(DIRECTORY)
def a_template_that_grows_where_it_is_compiled() -> Case:
    source = b"{{ 'aaaaaaaaaa'" + b" | replace('a', 'aaaaaaaaaa')" * 9 + b" }}"
    return Case(DIRECTORY.changed({"chat_template.jinja": source}))


@attack(DIRECTORY)
def a_template_that_writes_out_one_list_a_billion_times() -> Case:
    source = "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}"
    raw = (source + "{% endfor %}{{ ns.x }}" + tiny.CHAT_TEMPLATE).encode()
    return Case(DIRECTORY.changed({"chat_template.jinja": raw}))


@attack(DIRECTORY)
def a_long_template() -> Case:
    return refused(DIRECTORY, {"chat_template.jinja": b"x" * 5_000_000})
