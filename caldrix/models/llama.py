"""Llama 2 and 3, SmolLM2 and their kin: model_type `llama`.

GGUF files of this family hold the rows of q and k permuted so that rotated pairs are adjacent;
everything else is the plain dense decoder.
"""

from caldrix.models.dense import DenseFamily
from caldrix.models.graph import RopeStyle

FAMILY = DenseFamily(
    model_type="llama",
    gguf_architecture="llama",
    qkv_bias=None,
    qk_norm=False,
    gguf_rope_style=RopeStyle.ADJACENT,
)
