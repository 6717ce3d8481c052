"""Typed fields of config.json and of GGUF metadata: what the text models of this package share.

Reads values with their types and ranges and refuses what is missing, of a wrong type, absurd or
not built, each by the name it has in its own file. Knows nothing of files: it gets mappings.
Sizes are bounded so that no product of them can run away.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from caldrix.errors import RefusedError, printable
from caldrix.models.graph import RopeStyle
from caldrix.models.rope import RopeConfig

MAX_DIMENSION = 1 << 20
MAX_LAYERS = 1024


class Fields:
    """A mapping from outside, read field by field; `where` starts every refusal.

    A field that is absent or null has the default; without one, or with a value of another type or
    out of range, it is refused by name (RefusedError).
    """

    def __init__(self, values: Mapping[str, object], where: str, prefix: str = "") -> None:
        self.values = values
        self.where = where
        self.prefix = prefix

    def get(self, name: str) -> object:
        """The raw value, or None when it is absent or null."""
        return self.values.get(self.prefix + name)

    def refuse(self, name: str, value: object, wanted: str) -> RefusedError:
        """The refusal of one field, for the caller to raise."""
        field = self.prefix + name
        if value is None:
            return RefusedError(f"{self.where}: {field} is missing; {wanted} is needed")
        return RefusedError(f"{self.where}: {field} is {printable(value)}; {wanted} is needed")

    def integer(
        self, name: str, default: int | None = None, low: int = 1, high: int = MAX_DIMENSION
    ) -> int:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(name, value, f"an integer from {low} to {high}")
        return value

    def number(
        self, name: str, default: float | None = None, low: float = 0.0, high: float = 1e12
    ) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, value, "a number")
        # Compared before it is made a float: a JSON integer may be too large for one.
        if not low <= value <= high:
            raise self.refuse(name, value, f"a finite number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, value, "true or false")
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if value not in allowed:
            raise self.refuse(name, value, " or ".join(repr(a) for a in allowed))
        return str(value)

    def token_ids(self, name: str) -> frozenset[int]:
        """One id, a list of ids, or nothing."""
        value = self.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        for item in values:
            if isinstance(item, bool) or not isinstance(item, int) or item < 0:
                raise self.refuse(name, value, "a token id or a list of token ids")
        return frozenset(values)


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A dense decoder: what llama, qwen2 and qwen3 share. Field names as in config.json."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope: RopeConfig
    rope_style: RopeStyle
    qkv_bias: bool
    o_bias: bool
    qk_norm: bool


def check_heads(config: DecoderConfig, where: str) -> DecoderConfig:
    """Refuses head counts that do not divide and sizes that are not even; returns `config`."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        raise RefusedError(
            f"{where}: {heads} attention heads do not divide into {kv_heads} key-value heads"
        )
    if config.head_dim % 2:
        raise RefusedError(f"{where}: head_dim is {config.head_dim}; an even number is needed")
    if config.rope.dim % 2 or config.rope.dim < 2:
        raise RefusedError(
            f"{where}: {config.rope.dim} dimensions of a head are rotated;"
            f" an even number from 2 is needed"
        )
    return config


def decoder_from_hf(
    values: Mapping[str, object], where: str, *, qkv_bias: bool | None, qk_norm: bool
) -> DecoderConfig:
    """config.json of a dense decoder. `qkv_bias` None reads `attention_bias`, which then covers
    o_proj too."""
    f = Fields(values, where)
    f.choice("hidden_act", ("silu", "swish"), "silu")
    if f.flag("mlp_bias", False):
        raise f.refuse("mlp_bias", True, "false: biases in the MLP are not built yet")
    if f.flag("use_sliding_window", False):
        raise f.refuse("use_sliding_window", True, "false: sliding windows are not built yet")
    hidden, heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    if f.get("head_dim") is None and hidden % heads:
        raise RefusedError(f"{where}: hidden_size {hidden} does not divide by {heads} heads")
    head_dim = f.integer("head_dim", hidden // heads, high=4096)
    attention_bias = f.flag("attention_bias", False)
    max_positions = f.integer("max_position_embeddings", 2048, high=1 << 30)
    return check_heads(
        DecoderConfig(
            model_type=str(values["model_type"]),
            hidden_size=hidden,
            intermediate_size=f.integer("intermediate_size"),
            num_hidden_layers=f.integer("num_hidden_layers", high=MAX_LAYERS),
            num_attention_heads=heads,
            num_key_value_heads=f.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            vocab_size=f.integer("vocab_size", high=1 << 24),
            rms_norm_eps=f.number("rms_norm_eps", 1e-6, high=1.0),
            max_position_embeddings=max_positions,
            tie_word_embeddings=f.flag("tie_word_embeddings", False),
            rope=rope_from_hf(values, where, head_dim, max_positions),
            rope_style=RopeStyle.HALF,
            qkv_bias=attention_bias if qkv_bias is None else qkv_bias,
            o_bias=attention_bias if qkv_bias is None else False,
            qk_norm=qk_norm,
        ),
        where,
    )


def rope_from_hf(
    values: Mapping[str, object], where: str, head_dim: int, max_positions: int
) -> RopeConfig:
    """`rope_parameters` (transformers 5), or `rope_theta` beside `rope_scaling` (transformers
    4)."""
    name = "rope_parameters" if values.get("rope_parameters") is not None else "rope_scaling"
    nested = values.get(name) or {}
    if not isinstance(nested, Mapping):
        raise Fields(values, where).refuse(name, nested, "an object")
    theta = Fields(values, where).number("rope_theta", 10000.0, low=1.01)
    f = Fields(nested, f"{where}: {name}")
    kind = nested.get("rope_type", nested.get("type")) or "default"
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise f.refuse("rope_type", kind, "default, linear, llama3 or yarn")
    partial = f.number("partial_rotary_factor", 1.0, low=0.01, high=1.0)
    low_freq = f.number("low_freq_factor", 1.0, low=1e-6)
    high_freq = f.number("high_freq_factor", 4.0, low=1e-6)
    if kind == "llama3" and high_freq <= low_freq:
        raise f.refuse("high_freq_factor", high_freq, f"more than low_freq_factor {low_freq:g}")
    return RopeConfig(
        kind=str(kind),
        theta=f.number("rope_theta", theta, low=1.01),
        dim=int(head_dim * partial) // 2 * 2,
        factor=f.number("factor", None if kind != "default" else 1.0, low=1e-3),
        low_freq_factor=low_freq,
        high_freq_factor=high_freq,
        original_max_position_embeddings=f.integer(
            "original_max_position_embeddings", max_positions, high=1 << 30
        ),
        attention_factor=optional_number(f, "attention_factor"),
        beta_fast=f.number("beta_fast", 32.0, low=1e-6),
        beta_slow=f.number("beta_slow", 1.0, low=1e-6),
        mscale=optional_number(f, "mscale"),
        mscale_all_dim=optional_number(f, "mscale_all_dim"),
        truncate=f.flag("truncate", True),
    )


def optional_number(f: Fields, name: str) -> float | None:
    return None if f.get(name) is None else f.number(name)


def decoder_from_gguf(
    metadata: Mapping[str, object],
    tensors: Mapping[str, tuple[int, ...]],
    where: str,
    *,
    architecture: str,
    model_type: str,
    rope_style: RopeStyle,
    qk_norm: bool,
) -> DecoderConfig:
    """GGUF metadata of a dense decoder; `tensors` maps names to row-major shapes."""
    f = Fields(metadata, where, architecture + ".")
    hidden, heads = f.integer("embedding_length"), f.integer("attention.head_count")
    head_dim = f.integer("attention.key_length", hidden // heads or 1, high=4096)
    if f.integer("attention.value_length", head_dim) != head_dim:
        raise f.refuse("attention.value_length", f.get("attention.value_length"), f"{head_dim}")
    table = tensors.get("token_embd.weight", ())
    vocab = table[0] if len(table) == 2 else f.integer("vocab_size", high=1 << 24)
    max_positions = f.integer("context_length", 2048, high=1 << 30)
    if f.get("expert_count"):
        raise f.refuse("expert_count", f.get("expert_count"), "0: experts are not built yet")
    return check_heads(
        DecoderConfig(
            model_type=model_type,
            hidden_size=hidden,
            intermediate_size=f.integer("feed_forward_length"),
            num_hidden_layers=f.integer("block_count", high=MAX_LAYERS),
            num_attention_heads=heads,
            num_key_value_heads=f.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            vocab_size=vocab,
            rms_norm_eps=f.number("attention.layer_norm_rms_epsilon", low=0.0, high=1.0),
            max_position_embeddings=max_positions,
            tie_word_embeddings="output.weight" not in tensors,
            rope=rope_from_gguf(f, head_dim, max_positions),
            rope_style=rope_style,
            qkv_bias="blk.0.attn_q.bias" in tensors,
            o_bias="blk.0.attn_output.bias" in tensors,
            qk_norm=qk_norm,
        ),
        where,
    )


def rope_from_gguf(f: Fields, head_dim: int, max_positions: int) -> RopeConfig:
    """`{arch}.rope.*`; llama3 scaling is not here but in the tensor rope_freqs.weight."""
    kind = f.choice("rope.scaling.type", ("none", "linear", "yarn"), "none")
    factor = f.number("rope.scaling.factor", f.number("rope.scale_linear", 1.0), low=0.0)
    if kind == "none" and f.get("rope.scaling.type") is None and factor not in (0.0, 1.0):
        kind = "linear"
    return RopeConfig(
        kind={"none": "default"}.get(kind, kind),
        theta=f.number("rope.freq_base", 10000.0, low=1.01),
        dim=f.integer("rope.dimension_count", head_dim, low=2, high=head_dim),
        factor=factor or 1.0,
        original_max_position_embeddings=f.integer(
            "rope.scaling.original_context_length", max_positions, high=1 << 30
        ),
        attention_factor=optional_number(f, "rope.scaling.attn_factor"),
        beta_fast=f.number("rope.scaling.yarn_beta_fast", 32.0, low=1e-6),
        beta_slow=f.number("rope.scaling.yarn_beta_slow", 1.0, low=1e-6),
    )
