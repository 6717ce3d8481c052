"""Weight names: from the graph's Hugging Face names to those of a GGUF file, and what a
checkpoint may hold unused.

The graph speaks Hugging Face; a GGUF file uses the names of its own convention. One table serves
every dense decoder.
"""

import re

_GGUF_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")

# Tensors a checkpoint may hold although nothing reads them.
IGNORED_HF = re.compile(r".*\.rotary_emb\.inv_freq|lm_head\.weight")
IGNORED_GGUF = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")


def gguf_name(name: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` -> `blk.3.attn_q.weight`."""
    match = _LAYER.fullmatch(name)
    if match:
        return f"blk.{match[1]}.{_GGUF_LAYER[match[2]]}.{match[3]}"
    return _GGUF_TOP[name]
