"""Writes a small Llama directory whose greedy reply is known.

One token is one byte. Embeddings are one-hot and every layer adds nothing, so the output matrix is
a table from a token to the next: after the template's last byte comes the reply, byte by byte, then
the end token (or the reply again). The weights are bf16 and the file is about 350 kB.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tiny

SPECIAL = ["<|begin|>", "<|role|>", "<|end|>"]  # ids 256, 257, 258
END = 258
SIZE = 288  # of the vocabulary and of the hidden state: 9 heads of 32
INNER = 32
TEMPLATE = (
    "{% for m in messages %}<|role|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|role|>assistant\n{% endif %}"
)


def write_model(
    directory: Path,
    reply: str,
    *,
    template: str | None = TEMPLATE,
    repeats: bool = False,
    special: Sequence[str] = (),
    follows: Mapping[int, int] | None = None,
) -> Path:
    """`reply` has no byte twice, so that each byte says which comes next. `special` are more
    control tokens, from id 259 on; `follows` says what comes after tokens besides."""
    successors = reply.encode()
    assert len(set(successors)) == len(successors)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(_config()), encoding="utf8")
    tiny.write_tokenizer(directory, template, [*SPECIAL, *special])
    _write_weights(directory / "model.safetensors", successors, repeats, follows or {})
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


def _write_weights(path: Path, successors: bytes, repeats: bool, more: Mapping[int, int]) -> None:
    head = np.zeros((SIZE, SIZE), np.float32)
    chain = [*successors, successors[0] if repeats else END]
    follows = {ord("\n"): successors[0], **dict(zip(successors, chain[1:], strict=True)), **more}
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
    bf16 = {name: (values.view(np.uint32) >> 16).astype("<u2") for name, values in tensors.items()}
    tiny.write_safetensors(path, bf16)
