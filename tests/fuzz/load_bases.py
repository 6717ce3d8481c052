"""Whole small models for the load-path tests, as files in memory: two directories of safetensors
and three GGUF models.

Between them they have every family, every rope scaling, every weight type, all three kinds of GGUF
vocabulary, sets of shards and of split parts. Random weights: only that their scores are finite
matters. GGUF models keep their keys and tensors beside their bytes, so that a test can spoil one
value and write the rest truthfully.
"""

import json
import random
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import tiny
from model_files import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U16,
    U32,
    Written,
    write_gguf,
    write_safetensors,
)

Keys = dict[str, tuple[int, object]]  # name -> value type, value
Tensors = dict[str, tuple[int, list[int], bytes]]  # name -> type, dims innermost first, data
Shards = dict[str, dict[str, tuple[str, list[int], bytes]]]  # file -> name -> dtype, shape, data

# GGUF type number: elements and bytes a block, and where the block's f16 scales are.
BLOCKS = {
    0: (1, 4, []), 1: (1, 2, [0]), 30: (1, 2, []), 8: (32, 34, [0]), 2: (32, 18, [0]),
    3: (32, 20, [0, 2]), 6: (32, 22, [0]), 7: (32, 24, [0, 2]), 10: (256, 84, [80, 82]),
    11: (256, 110, [108]), 12: (256, 144, [0, 2]), 13: (256, 176, [0, 2]), 14: (256, 210, [208]),
    20: (32, 18, [0]), 23: (256, 136, [0]), 39: (32, 17, []),
}  # fmt: skip


@dataclass(frozen=True)
class Base:
    """`model` is the file to load, or "" for the directory."""

    name: str
    files: dict[str, bytes]
    model: str = ""
    keys: Keys = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    shards: Shards = field(default_factory=dict)
    version: int = 3
    n_parts: int = 1

    def with_gguf(self, keys: Keys, tensors: Tensors) -> dict[str, bytes]:
        """The files of this model with other keys or tensors, each part truthful about itself."""
        return gguf_files(self.model, keys, tensors, self.version, self.n_parts)

    def changed(self, files: Mapping[str, bytes | None]) -> dict[str, bytes]:
        """These files with some replaced, or taken away where None."""
        merged = {**self.files, **files}
        return {name: raw for name, raw in merged.items() if raw is not None}


def written(base: Base, n: int = 0) -> Written:
    """One part of a GGUF model with the places of its fields."""
    keys, tensors = part_of(base.keys, base.tensors, n, base.n_parts)
    return write_gguf(keys, tensors, base.version)


def gguf_files(
    name: str, keys: Keys, tensors: Tensors, version: int = 3, n_parts: int = 1
) -> dict[str, bytes]:
    files = {}
    for n in range(n_parts):
        mine, held = part_of(keys, tensors, n, n_parts)
        path = name if n_parts == 1 else name.replace("00001-of", f"{n + 1:05d}-of")
        files[path] = bytes(write_gguf(mine, held, version).raw)
    return files


def part_of(keys: Keys, tensors: Tensors, n: int, n_parts: int) -> tuple[Keys, Tensors]:
    """The keys and tensors of part n of a split model."""
    if n_parts == 1:
        return keys, tensors
    split: Keys = {"split.no": (U16, n), "split.count": (U16, n_parts)}
    split["split.tensors.count"] = (I32, len(tensors))
    names = list(tensors)
    held = names[n * len(names) // n_parts : (n + 1) * len(names) // n_parts]
    return (keys | split if n == 0 else split), {name: tensors[name] for name in held}


def blocks(rng: random.Random, type_id: int, n_elements: int) -> bytes:
    """Random weights of a type with small, finite scales."""
    elements, size, scales = BLOCKS[type_id]
    n = n_elements // elements
    if type_id in (0, 1, 30):
        values = np.asarray([rng.gauss(0, 0.2) for _ in range(n)], np.float32)
        if type_id == 30:
            return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        return values.astype(np.float16 if type_id == 1 else np.float32).tobytes()
    raw = np.frombuffer(rng.randbytes(n * size), np.uint8).reshape(n, size).copy()
    for at in scales:
        raw[:, at : at + 2] = np.frombuffer(struct.pack("<e", rng.uniform(0.0005, 0.002)), np.uint8)
    if type_id == 39:
        raw[:, 0] = 123  # 2^-4
    return raw.tobytes()


def gguf_tensors(
    hidden: int, q: int, kv: int, inner: int, types: list[int], *, tied: bool, extras: list[str]
) -> Tensors:
    """A decoder of two layers, its matrices of the given types in turn, its vectors f32."""
    rng = random.Random(hidden)
    layer = {"attn_q": (hidden, q), "attn_k": (hidden, kv), "attn_v": (hidden, kv)}
    layer |= {"attn_output": (q, hidden), "ffn_gate": (hidden, inner), "ffn_up": (hidden, inner)}
    layer |= {"ffn_down": (inner, hidden)}
    shapes = {"token_embd.weight": [hidden, tiny.VOCAB]}
    for n in range(2):
        shapes |= {f"blk.{n}.{name}.weight": list(dims) for name, dims in layer.items()}
        shapes |= {f"blk.{n}.{name}_norm.weight": [hidden] for name in ("attn", "ffn")}
        sizes = {"q": q, "k": kv, "v": kv, "q_norm": 32, "k_norm": 32}
        for name in extras:
            end = "weight" if "norm" in name else "bias"
            shapes[f"blk.{n}.attn_{name}.{end}"] = [sizes[name]]
    shapes["output_norm.weight"] = [hidden]
    if not tied:
        shapes["output.weight"] = [hidden, tiny.VOCAB]
    tensors: Tensors = {}
    n_matrices = 0
    for name, dims in shapes.items():
        if len(dims) == 1:
            values = [1 + rng.uniform(-0.2, 0.2) for _ in range(dims[0])]
            tensors[name] = (0, dims, struct.pack(f"<{dims[0]}f", *values))
        else:
            type_id = types[n_matrices % len(types)]
            n_matrices += 1
            tensors[name] = (type_id, dims, blocks(rng, type_id, dims[0] * dims[1]))
    return tensors


def gguf_keys(architecture: str, hidden: int, heads: int, kv: int, inner: int) -> Keys:
    a = architecture + "."
    return {
        "general.architecture": (STRING, architecture),
        "general.name": (STRING, "a small model"),
        "general.alignment": (U32, 32),
        a + "block_count": (U32, 2),
        a + "context_length": (U32, 512),
        a + "embedding_length": (U32, hidden),
        a + "feed_forward_length": (U32, inner),
        a + "attention.head_count": (U32, heads),
        a + "attention.head_count_kv": (U32, kv),
        a + "attention.layer_norm_rms_epsilon": (F32, 1e-5),
        a + "rope.freq_base": (F32, 10000.0),
        "tokenizer.chat_template": (STRING, tiny.CHAT_TEMPLATE),
    }


def byte_level_keys() -> Keys:
    tokens = [*tiny.byte_symbols(), *tiny.SPECIAL, "he", "ll", "hell", "\u0120w"]
    types = [1] * 256 + [3] * 3 + [1] * 4
    tokens += [f"[unused{i}]" for i in range(tiny.VOCAB - len(tokens))]
    types += [5] * (tiny.VOCAB - len(types))
    merges = ["h e", "l l", "he ll", "\u0120 w"]
    return {
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "smollm"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, (I32, types)),
        "tokenizer.ggml.merges": (ARRAY, (STRING, merges)),
        "tokenizer.ggml.bos_token_id": (U32, tiny.BOS),
        "tokenizer.ggml.eos_token_id": (U32, tiny.END),
        "tokenizer.ggml.add_bos_token": (BOOL, 0),
    }


def scored_keys(model: str) -> Keys:
    """A vocabulary with scores: `llama` (merges follow from them) or `t5` (Unigram)."""
    tokens = ["<unk>", "<s>", "</s>", *tiny.SPECIAL[1:]]
    types = [2, 3, 3, 3, 3]
    tokens += [f"<0x{b:02X}>" for b in range(256)]
    types += [6] * 256
    tokens += ["\u2581", "h", "e", "l", "o", "he", "ll", "hell", "\u2581he"]
    types += [1] * 9
    tokens += [f"[unused{i}]" for i in range(tiny.VOCAB - len(tokens))]
    types += [5] * (tiny.VOCAB - len(types))
    return {
        "tokenizer.ggml.model": (STRING, model),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.scores": (ARRAY, (F32, [-float(i) / 8 for i in range(len(tokens))])),
        "tokenizer.ggml.token_type": (ARRAY, (I32, types)),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2),
        "tokenizer.ggml.unknown_token_id": (U32, 0),
        "tokenizer.ggml.add_bos_token": (BOOL, 1),
        "tokenizer.ggml.add_space_prefix": (BOOL, 1),
    }


def gguf_base(name: str, model: str, keys: Keys, tensors: Tensors, **more: int) -> Base:
    base = Base(name, {}, model, keys, tensors, **more)  # type: ignore[arg-type]
    return replace(base, files=base.with_gguf(keys, tensors))


def gguf_bases() -> list[Base]:
    types = [8, 12, 14, 13, 23, 10, 11, 3, 6, 2, 30, 20, 39, 1, 8, 7]
    llama = gguf_tensors(256, 256, 128, 256, types, tied=False, extras=[])
    llama["rope_freqs.weight"] = (0, [32], struct.pack("<32f", *range(1, 33)))
    qwen3 = gguf_tensors(
        64, 128, 64, 96, [8, 2, 6, 7, 20, 39], tied=True, extras=["q_norm", "k_norm"]
    )
    qwen2 = gguf_tensors(64, 64, 32, 96, [1, 30, 0, 3], tied=True, extras=["q", "k", "v"])
    yarn: Keys = {
        "qwen2.rope.scaling.type": (STRING, "yarn"),
        "qwen2.rope.scaling.factor": (F32, 4.0),
        "qwen2.rope.scaling.original_context_length": (U32, 128),
        "qwen2.rope.dimension_count": (U32, 16),
        "tokenizer.ggml.pre": (STRING, "default"),
    }
    long = {"qwen3.attention.key_length": (U32, 32), "qwen3.attention.value_length": (U32, 32)}
    keys = {
        "llama": gguf_keys("llama", 256, 4, 2, 256) | byte_level_keys(),
        "qwen3": gguf_keys("qwen3", 64, 4, 2, 96) | long | scored_keys("llama"),
        "qwen2": gguf_keys("qwen2", 64, 4, 2, 96) | yarn | scored_keys("t5"),
    }
    return [
        gguf_base("gguf-llama", "whole.gguf", keys["llama"], llama),
        gguf_base("gguf-qwen3", "part-00001-of-00003.gguf", keys["qwen3"], qwen3, n_parts=3),
        gguf_base("gguf-qwen2", "second.gguf", keys["qwen2"], qwen2, version=2),
    ]


DTYPES = {"F32": np.float32, "F16": np.float16}


def stored(values: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]", dtype: str) -> bytes:
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(DTYPES[dtype]).tobytes()


def directory_base(name: str, model: str, n_shards: int) -> Base:
    """One of tiny.MODELS, its weights of all three readable dtypes, in one file or in shards."""
    made = next(m for m in tiny.MODELS if m.name == model)
    tensors = {
        name: (dtype, list(values.shape), stored(values, dtype))
        for i, (name, values) in enumerate(tiny.weights(made).items())
        for dtype in [("F32", "BF16", "F16")[i % 3]]
    }
    names = list(tensors)
    shards: Shards = {}
    for n in range(n_shards):
        path = f"model-{n + 1:05d}-of-{n_shards:05d}.safetensors"
        held = names[n * len(names) // n_shards : (n + 1) * len(names) // n_shards]
        shards["model.safetensors" if n_shards == 1 else path] = {k: tensors[k] for k in held}
    with tempfile.TemporaryDirectory() as folder:
        tiny.write_tokenizer(Path(folder))
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    config = json.dumps(made.config_json()).encode()
    generation = json.dumps({"eos_token_id": [tiny.END, tiny.BOS]}).encode()
    files |= {"config.json": config, "generation_config.json": generation}
    files |= {path: write_safetensors(held, {"format": "pt"}) for path, held in shards.items()}
    if n_shards > 1:
        weight_map = {key: path for path, held in shards.items() for key in held}
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        files["model.safetensors.index.json"] = json.dumps(index).encode()
        files["chat_template.jinja"] = tiny.CHAT_TEMPLATE.encode()
    return Base(name, files, shards=shards)


def safetensors_bases() -> list[Base]:
    return [
        directory_base("llama-one", "llama-tied", 1),
        directory_base("qwen3-sharded", "qwen3", 2),
        directory_base("llama3-one", "llama-llama3", 1),
        directory_base("yarn-sharded", "llama-yarn", 3),
        directory_base("qwen2-one", "qwen2", 1),
    ]
