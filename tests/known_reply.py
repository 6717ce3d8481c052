"""Writes a small Llama directory whose greedy reply is known.

One token is one byte. Embeddings are one-hot and every layer adds nothing, so the output matrix is
a table from a token to the next: after the template's last byte comes the reply, byte by byte, then
the end token (or the reply again). The weights are bf16 and the file is about 350 kB.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

SPECIAL = ["<|begin|>", "<|role|>", "<|end|>"]  # ids 256, 257, 258
END = 258
SIZE = 288  # of the vocabulary and of the hidden state: 9 heads of 32
INNER = 32
TEMPLATE = (
    "{% for m in messages %}<|role|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|role|>assistant\n{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def write_model(
    directory: Path, reply: str, *, template: str | None = TEMPLATE, repeats: bool = False
) -> Path:
    """`reply` has no byte twice, so that each byte says which comes next."""
    successors = reply.encode()
    assert len(set(successors)) == len(successors)
    directory.mkdir(parents=True)
    _write_json(directory / "config.json", _config())
    _write_json(directory / "tokenizer.json", _tokenizer())
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[2]}
    if template is not None:
        about["chat_template"] = template
    _write_json(directory / "tokenizer_config.json", about)
    _write_weights(directory / "model.safetensors", successors, repeats)
    return directory


def _config() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": SIZE,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "vocab_size": SIZE,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 256,
        "eos_token_id": END,
    }


def _tokenizer() -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "post_processor": None,
        "added_tokens": [
            {"id": 256 + i, "content": text, "special": True, **flags}
            for i, text in enumerate(SPECIAL)
        ],
        "pre_tokenizer": {**level, "use_regex": False},
        "decoder": {**level, "use_regex": False},
        "model": {
            "type": "BPE",
            "vocab": {symbol: byte for byte, symbol in enumerate(byte_symbols())},
            "merges": [],
        },
    }


def _write_weights(path: Path, successors: bytes, repeats: bool) -> None:
    head = np.zeros((SIZE, SIZE), np.float32)
    chain = [*successors, successors[0] if repeats else END]
    follows = {ord("\n"): successors[0], **dict(zip(successors, chain[1:], strict=True))}
    for token in range(SIZE):
        head[follows.get(token, END), token] = 4
    kv = 3 * 32
    shapes = {
        "self_attn.q_proj": (SIZE, SIZE),
        "self_attn.k_proj": (kv, SIZE),
        "self_attn.v_proj": (kv, SIZE),
        "self_attn.o_proj": (SIZE, SIZE),
        "mlp.gate_proj": (INNER, SIZE),
        "mlp.up_proj": (INNER, SIZE),
        "mlp.down_proj": (SIZE, INNER),
    }
    ones = np.ones(SIZE, np.float32)
    tensors = {
        "model.embed_tokens.weight": np.eye(SIZE, dtype=np.float32),
        "lm_head.weight": head,
        "model.norm.weight": ones,
        "model.layers.0.input_layernorm.weight": ones,
        "model.layers.0.post_attention_layernorm.weight": ones,
    }
    for name, shape in shapes.items():
        tensors[f"model.layers.0.{name}.weight"] = np.zeros(shape, np.float32)
    _write_bf16(path, tensors)


def _write_bf16(path: Path, tensors: dict[str, Any]) -> None:
    header, data = {}, b""
    for name, values in tensors.items():
        raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf8")
