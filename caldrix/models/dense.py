"""A family of dense decoders: what tells one from another, and the rest that they share.

llama, qwen2 and qwen3 are rows of this; a family that is no plain dense decoder brings a class of
its own with the same three methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from caldrix.models import blocks
from caldrix.models.config import DecoderConfig, decoder_from_gguf, decoder_from_hf
from caldrix.models.graph import Graph, RopeStyle


@dataclass(frozen=True, slots=True)
class DenseFamily:
    """`qkv_bias` None: as `attention_bias` of config.json says, which then covers o_proj too."""

    model_type: str
    gguf_architecture: str
    qkv_bias: bool | None
    qk_norm: bool
    gguf_rope_style: RopeStyle  # how a GGUF file has the rows of q and k; checkpoints have HALF

    def config_from_hf(self, values: Mapping[str, object], where: str) -> DecoderConfig:
        return decoder_from_hf(values, where, qkv_bias=self.qkv_bias, qk_norm=self.qk_norm)

    def config_from_gguf(
        self, metadata: Mapping[str, object], tensors: Mapping[str, tuple[int, ...]], where: str
    ) -> DecoderConfig:
        return decoder_from_gguf(
            metadata,
            tensors,
            where,
            architecture=self.gguf_architecture,
            model_type=self.model_type,
            rope_style=self.gguf_rope_style,
            qk_norm=self.qk_norm,
        )

    def build(self, config: DecoderConfig) -> Graph:
        return blocks.dense_decoder(config)
