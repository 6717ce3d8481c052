"""Llama 2 and 3, SmolLM2 and their kin: model_type `llama`.

GGUF files of this family hold the rows of q and k permuted so that rotated pairs are adjacent;
everything else is the plain dense decoder.
"""

from collections.abc import Mapping

from caldrix.models import blocks
from caldrix.models.config import DecoderConfig, decoder_from_gguf, decoder_from_hf
from caldrix.models.graph import Graph, RopeStyle

GGUF_ARCHITECTURE = "llama"


def config_from_hf(values: Mapping[str, object], where: str) -> DecoderConfig:
    return decoder_from_hf(values, where, qkv_bias=None, qk_norm=False)


def config_from_gguf(
    metadata: Mapping[str, object], tensors: Mapping[str, tuple[int, ...]], where: str
) -> DecoderConfig:
    return decoder_from_gguf(
        metadata,
        tensors,
        where,
        architecture=GGUF_ARCHITECTURE,
        model_type="llama",
        rope_style=RopeStyle.ADJACENT,
        qk_norm=False,
    )


def build(config: DecoderConfig) -> Graph:
    return blocks.dense_decoder(config)
