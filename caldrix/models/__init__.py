"""The architectures caldrix knows: model_type to the one file that describes it.

Adding a family is one new file and one line in ARCHITECTURES. Model files hold no numerics: they
read a config and build a graph.
"""

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

from caldrix.errors import RefusedError, printable
from caldrix.models.config import DecoderConfig
from caldrix.models.graph import Graph

ARCHITECTURES = ("llama", "qwen2", "qwen3")


class Family(Protocol):
    """What a model file provides as FAMILY."""

    @property
    def gguf_architecture(self) -> str: ...

    def config_from_hf(self, values: Mapping[str, object], where: str) -> DecoderConfig:
        """The fields of config.json; RefusedError, starting with `where`, for one that is not
        built."""
        ...

    def config_from_gguf(
        self, metadata: Mapping[str, object], tensors: Mapping[str, tuple[int, ...]], where: str
    ) -> DecoderConfig:
        """The same from GGUF metadata and the row-major shapes of the file's tensors."""
        ...

    def build(self, config: DecoderConfig) -> Graph:
        """The model from token ids to logits; weights by their Hugging Face names."""
        ...


def family_of_hf(values: Mapping[str, object], where: str) -> Family:
    """The family that config.json's model_type names."""
    model_type = values.get("model_type")
    if model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise RefusedError(
            f"{where}: model_type {printable(model_type)} is not supported; known are {known}"
        )
    return _load(str(model_type))


def family_of_gguf(metadata: Mapping[str, object], where: str) -> Family:
    """The family that general.architecture names."""
    name = metadata.get("general.architecture")
    families = {family.gguf_architecture: family for family in map(_load, ARCHITECTURES)}
    if isinstance(name, str) and name in families:
        return families[name]
    known = ", ".join(families)
    raise RefusedError(
        f"{where}: general.architecture {printable(name)} is not supported; known are {known}"
    )


def _load(model_type: str) -> Family:
    return cast(Family, importlib.import_module(f"caldrix.models.{model_type}").FAMILY)
