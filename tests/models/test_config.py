"""config.json and GGUF metadata to typed fields: what is read and what is refused by name."""

import math

import pytest
from tiny import MODELS, Tiny, shapes

from caldrix.errors import RefusedError
from caldrix.models import ARCHITECTURES, family_of_gguf, family_of_hf, names
from caldrix.models.graph import RopeStyle


@pytest.mark.parametrize("tiny", MODELS, ids=lambda t: t.name)
def test_every_weight_of_a_checkpoint_is_in_the_graph(tiny: Tiny) -> None:
    values = tiny.config_json()
    family = family_of_hf(values, "c")
    graph = family.build(family.config_from_hf(values, "c"))
    assert {w.name: w.shape for w in graph.weights()} == shapes(values)


def test_every_architecture_has_a_tiny_model() -> None:
    assert {str(t.config["model_type"]) for t in MODELS} == set(ARCHITECTURES)


BASE = MODELS[0].config_json()
LOW_ABOVE_HIGH = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 2}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": "72"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_key_value_heads": 4}, "key-value heads"),
        ({"head_dim": 11}, "head_dim"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),  # was an OverflowError
        ({"rope_scaling": {"rope_type": "yarn", "factor": -(10**400)}}, "factor"),
        ({"rope_scaling": LOW_ABOVE_HIGH}, "high_freq_factor is 2.0; more than low_freq_factor 4"),
        (
            {"partial_rotary_factor": 0.01, "rope_scaling": {"partial_rotary_factor": 0.01}},
            "rotated",
        ),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": "yarn"}, "rope_scaling"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"vocab_size": 10**9}, "vocab_size"),
    ],
)
def test_a_field_out_of_range_is_refused_by_name(change: dict[str, object], named: str) -> None:
    values = {**BASE, **change}
    with pytest.raises(RefusedError, match=named) as caught:
        family_of_hf(values, "config.json").config_from_hf(values, "config.json")
    assert str(caught.value).startswith("config.json: ")
    assert "\n" not in str(caught.value)


def test_rope_parameters_of_either_spelling_are_the_same() -> None:
    old = {**BASE, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {**BASE, "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5}}
    new.pop("rope_theta")
    family = family_of_hf(BASE, "c")
    assert family.config_from_hf(old, "c").rope == family.config_from_hf(new, "c").rope


def test_sliding_windows_are_refused_only_when_used() -> None:
    values = {**MODELS[5].config_json(), "sliding_window": 4096, "use_sliding_window": False}
    family = family_of_hf(values, "c")
    family.config_from_hf(values, "c")
    with pytest.raises(RefusedError, match="use_sliding_window"):
        family.config_from_hf({**values, "use_sliding_window": True}, "c")


GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 72,
    "llama.feed_forward_length": 136,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
TENSORS: dict[str, tuple[int, ...]] = {"token_embd.weight": (300, 72)}


def test_gguf_metadata_gives_the_same_config() -> None:
    config = family_of_gguf(GGUF, "f").config_from_gguf(GGUF, TENSORS, "f")
    assert (config.vocab_size, config.head_dim, config.num_key_value_heads) == (300, 12, 2)
    assert config.rope_style is RopeStyle.ADJACENT
    assert config.tie_word_embeddings
    assert config.rope.theta == 10000.0
    untied = {**TENSORS, "output.weight": (300, 72)}
    assert not family_of_gguf(GGUF, "f").config_from_gguf(GGUF, untied, "f").tie_word_embeddings


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general.architecture": "bert"}, "bert"),
        ({"llama.block_count": "2"}, "llama.block_count"),
        ({"llama.embedding_length": None}, "llama.embedding_length"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count"),
        ({"llama.attention.value_length": 16}, "llama.attention.value_length"),
        ({"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type"),
        ({"llama.rope.dimension_count": 13}, "llama.rope.dimension_count"),
        (
            {"llama.rope.dimension_count": 7},
            "7 dimensions of a head are rotated",
        ),  # was a ValueError
        ({"llama.expert_count": 8}, "llama.expert_count"),
    ],
)
def test_a_metadata_key_out_of_range_is_refused(change: dict[str, object], named: str) -> None:
    values = {**GGUF, **change}
    with pytest.raises(RefusedError, match=named):
        family_of_gguf(values, "f").config_from_gguf(values, TENSORS, "f")


def test_gguf_names_of_every_weight() -> None:
    for tiny in MODELS:
        for name in shapes(tiny.config_json()):
            assert names.gguf_name(name).endswith((".weight", ".bias"))
    assert names.gguf_name("model.layers.3.self_attn.q_proj.bias") == "blk.3.attn_q.bias"
    assert names.gguf_name("lm_head.weight") == "output.weight"
