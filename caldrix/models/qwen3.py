"""Qwen3: model_type `qwen3`.

The dense decoder with an RMS norm over each head of q and k before they are rotated; heads *
head_dim may differ from the hidden size.
"""

from collections.abc import Mapping

from caldrix.models import blocks
from caldrix.models.config import DecoderConfig, decoder_from_gguf, decoder_from_hf
from caldrix.models.graph import Graph, RopeStyle

GGUF_ARCHITECTURE = "qwen3"


def config_from_hf(values: Mapping[str, object], where: str) -> DecoderConfig:
    return decoder_from_hf(values, where, qkv_bias=None, qk_norm=True)


def config_from_gguf(
    metadata: Mapping[str, object], tensors: Mapping[str, tuple[int, ...]], where: str
) -> DecoderConfig:
    return decoder_from_gguf(
        metadata,
        tensors,
        where,
        architecture=GGUF_ARCHITECTURE,
        model_type="qwen3",
        rope_style=RopeStyle.HALF,
        qk_norm=True,
    )


def build(config: DecoderConfig) -> Graph:
    return blocks.dense_decoder(config)
