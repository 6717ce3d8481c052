"""Qwen3: model_type `qwen3`.

The dense decoder with an RMS norm over each head of q and k before they are rotated; heads *
head_dim may differ from the hidden size.
"""

from caldrix.models.dense import DenseFamily
from caldrix.models.graph import RopeStyle

FAMILY = DenseFamily(
    model_type="qwen3",
    gguf_architecture="qwen3",
    qkv_bias=None,
    qk_norm=True,
    gguf_rope_style=RopeStyle.HALF,
)
