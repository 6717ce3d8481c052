"""Qwen2 and Qwen2.5: model_type `qwen2`.

The dense decoder with biases on q, k and v, always present whatever config.json says of
attention_bias.
"""

from caldrix.models.dense import DenseFamily
from caldrix.models.graph import RopeStyle

FAMILY = DenseFamily(
    model_type="qwen2",
    gguf_architecture="qwen2",
    qkv_bias=True,
    qk_norm=False,
    gguf_rope_style=RopeStyle.HALF,
)
