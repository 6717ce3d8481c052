"""Tiny checkpoints of every architecture, made from a seed by an integer generator of our own.

The generator is fixed for ever: tests/golden holds what the reference library computes for these
very weights. Also writes the byte-level tokenizer that goes with them (id = byte, then three
control tokens).
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

VOCAB = 272
SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]  # ids 256, 257, 258
BOS, START, END = 256, 257, 258
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

COMMON = {
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
    "hidden_act": "silu",
    "bos_token_id": BOS,
    "eos_token_id": END,
    "rope_theta": 10000.0,
    "num_hidden_layers": 2,
}


@dataclass(frozen=True)
class Tiny:
    """One small model: a name, config.json beyond COMMON, and the architecture's class name."""

    name: str
    architecture: str
    config: dict[str, object] = field(default_factory=dict)

    def config_json(self) -> dict[str, object]:
        return {**COMMON, "architectures": [self.architecture], **self.config}


def _llama(name: str, **more: object) -> Tiny:
    base = {
        "model_type": "llama",
        "hidden_size": 72,
        "intermediate_size": 136,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "tie_word_embeddings": True,
    }
    return Tiny(name, "LlamaForCausalLM", base | more)


def _qwen(name: str, model_type: str, architecture: str, **more: object) -> Tiny:
    base = {
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 104,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    }
    return Tiny(name, architecture, base | more)


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = [
    _llama("llama-tied"),
    _llama("llama-bias", attention_bias=True, tie_word_embeddings=False),
    _llama("llama-llama3", rope_scaling=_LLAMA3, head_dim=16, num_attention_heads=4),
    _llama("llama-linear", rope_scaling={"rope_type": "linear", "factor": 4.0}),
    _llama("llama-yarn", rope_scaling=_YARN, head_dim=16, num_attention_heads=4),
    _qwen("qwen2", "qwen2", "Qwen2ForCausalLM"),
    _qwen("qwen3", "qwen3", "Qwen3ForCausalLM", head_dim=32),
]

# Rows of whole blocks of every type, so that all its matrices can be planes.
WIDE = _qwen(
    "wide", "qwen3", "Qwen3ForCausalLM", hidden_size=256, intermediate_size=512, head_dim=64
)


def uniform(seed: int, count: int) -> npt.NDArray[np.float32]:
    """`count` numbers in [-1, 1): splitmix64 of seed and index, the top 24 bits; exact in f32."""
    with np.errstate(over="ignore"):
        x = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed) * np.uint64(
            0x9E3779B97F4A7C15
        )
        x *= np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return ((x >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23)) - np.float32(1)


def shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a dense decoder, by its Hugging Face name."""
    h, inner, heads, kv = (
        int(str(config[k]))
        for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    )
    d = int(str(config.get("head_dim") or h // heads))
    biased = bool(config.get("attention_bias")) or config["model_type"] == "qwen2"
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, h)}
    for layer in range(int(str(config["num_hidden_layers"]))):
        p = f"model.layers.{layer}."
        found[p + "input_layernorm.weight"] = (h,)
        for name, n in (("q", heads * d), ("k", kv * d), ("v", kv * d)):
            found[f"{p}self_attn.{name}_proj.weight"] = (n, h)
            if biased:
                found[f"{p}self_attn.{name}_proj.bias"] = (n,)
        found[p + "self_attn.o_proj.weight"] = (h, heads * d)
        if config.get("attention_bias"):
            found[p + "self_attn.o_proj.bias"] = (h,)
        if config["model_type"] == "qwen3":
            found[p + "self_attn.q_norm.weight"] = found[p + "self_attn.k_norm.weight"] = (d,)
        found[p + "post_attention_layernorm.weight"] = (h,)
        found[p + "mlp.gate_proj.weight"] = found[p + "mlp.up_proj.weight"] = (inner, h)
        found[p + "mlp.down_proj.weight"] = (h, inner)
    found["model.norm.weight"] = (h,)
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (VOCAB, h)
    return found


def weights(tiny: Tiny, seed: int = 1) -> dict[str, npt.NDArray[np.float32]]:
    """Spread so that greedy choices have clear margins."""
    made = {}
    for index, (name, shape) in enumerate(shapes(tiny.config_json()).items()):
        count = int(np.prod(shape))
        values = uniform(seed * 1000 + index, count).reshape(shape)
        if len(shape) == 2 and "embed" not in name:
            values = values * np.float32(3.0 / np.sqrt(shape[1]))
        elif name.endswith("norm.weight"):
            values = np.float32(1.0) + values * np.float32(0.25)
        elif name.endswith("bias"):
            values = values * np.float32(0.25)
        made[name] = values.astype(np.float32)
    return made


def write_safetensors(path: Path, tensors: dict[str, npt.NDArray[np.generic]]) -> None:
    """f32 and (as uint16) bf16 arrays; the format's header is eight bytes of length and JSON."""
    header: dict[str, object] = {}
    at = 0
    for name, array in tensors.items():
        dtype = {"float32": "F32", "uint16": "BF16", "float16": "F16"}[array.dtype.name]
        end = at + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            out.write(array.tobytes())


def byte_symbols() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE vocabularies (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols, extra = {b: chr(b) for b in plain}, 256
    for byte in range(256):
        if byte not in symbols:
            symbols[byte] = chr(extra)
            extra += 1
    return [symbols[b] for b in range(256)]


def write_tokenizer(
    directory: Path, chat_template: str | None = CHAT_TEMPLATE, special: Sequence[str] = SPECIAL
) -> None:
    """One token a byte, then `special`: begin, one more, end. Nothing adds the begin token."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    added = [
        {"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for i, text in enumerate(special)
    ]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False}
    model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None}
    model |= {"byte_fallback": False, "merges": []}
    model |= {"vocab": {symbol: byte for byte, symbol in enumerate(byte_symbols())}}
    document = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None}
    document |= {"post_processor": None, "added_tokens": added, "model": model}
    document |= {"pre_tokenizer": {**byte_level, "use_regex": False}}
    document |= {"decoder": {**byte_level, "use_regex": False}}
    (directory / "tokenizer.json").write_text(json.dumps(document), encoding="utf8")
    config = {"bos_token": special[0], "eos_token": special[-1]}
    if chat_template is not None:
        config["chat_template"] = chat_template
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf8")


def bf16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Cut off after bf16's bits: as good as any rounding for weights drawn at random."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_model(directory: Path, tiny: Tiny, seed: int = 1, *, bf16: bool = False) -> Path:
    """A whole model directory, f32 or bf16."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(tiny.config_json()), encoding="utf8")
    made = weights(tiny, seed)
    cut = {name: bf16_bits(values) for name, values in made.items()} if bf16 else made
    write_safetensors(directory / "model.safetensors", dict(cut))
    write_tokenizer(directory)
    return directory
