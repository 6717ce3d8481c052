"""Qwen2 and Qwen2.5: model_type `qwen2`.

The dense decoder with biases on q, k and v, always present whatever config.json says of
attention_bias.
"""

from collections.abc import Mapping

from caldrix.models import blocks
from caldrix.models.config import DecoderConfig, decoder_from_gguf, decoder_from_hf
from caldrix.models.graph import Graph, RopeStyle

GGUF_ARCHITECTURE = "qwen2"


def config_from_hf(values: Mapping[str, object], where: str) -> DecoderConfig:
    return decoder_from_hf(values, where, qkv_bias=True, qk_norm=False)


def config_from_gguf(
    metadata: Mapping[str, object], tensors: Mapping[str, tuple[int, ...]], where: str
) -> DecoderConfig:
    return decoder_from_gguf(
        metadata,
        tensors,
        where,
        architecture=GGUF_ARCHITECTURE,
        model_type="qwen2",
        rope_style=RopeStyle.HALF,
        qk_norm=False,
    )


def build(config: DecoderConfig) -> Graph:
    return blocks.dense_decoder(config)
