"""Builders that several architectures share: attention with grouped heads, the gated MLP, the
whole dense decoder.

Adds nodes to a graph; names weights as Hugging Face does; holds no numbers of any model.
"""

from caldrix.models.config import DecoderConfig
from caldrix.models.graph import AttentionShape, Graph, GraphBuilder, Value


def attention(b: GraphBuilder, x: Value, config: DecoderConfig, prefix: str) -> Value:
    """q, k, v with optional biases and head norms, rotated, cached, attended, projected back."""
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def project(name: str, n: int, biased: bool, source: Value) -> Value:
        bias = f"{prefix}{name}.bias" if biased else None
        return b.linear(source, n, f"{prefix}{name}.weight", bias)

    q = project("q_proj", heads * dim, config.qkv_bias, x)
    k = project("k_proj", kv_heads * dim, config.qkv_bias, x)
    v = project("v_proj", kv_heads * dim, config.qkv_bias, x)
    if config.qk_norm:
        q = b.head_norm(q, heads, f"{prefix}q_norm.weight")
        k = b.head_norm(k, kv_heads, f"{prefix}k_norm.weight")
    q, k = b.rope(q, heads), b.rope(k, kv_heads)
    b.store(k, v)
    return project("o_proj", config.hidden_size, config.o_bias, b.attention(q))


def gated_mlp(b: GraphBuilder, x: Value, inner: int, prefix: str) -> Value:
    """down(silu(gate(x)) * up(x))"""
    gate = b.linear(x, inner, f"{prefix}gate_proj.weight")
    up = b.linear(x, inner, f"{prefix}up_proj.weight")
    return b.linear(b.act_mul(gate, up), x.width, f"{prefix}down_proj.weight")


def dense_decoder(config: DecoderConfig) -> Graph:
    """The pre-norm decoder of the llama line, from token ids to logits."""
    shape = AttentionShape(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rope_dim=config.rope.dim,
        rope_style=config.rope_style,
        scale=config.head_dim**-0.5,
        norm_eps=config.rms_norm_eps,
    )
    graph = Graph(
        config.hidden_size,
        config.vocab_size,
        config.num_hidden_layers,
        shape,
        config.rms_norm_eps,
    )
    b = GraphBuilder(graph)
    x = b.embed("model.embed_tokens.weight")
    for layer in range(config.num_hidden_layers):
        b.layer, prefix = layer, f"model.layers.{layer}."
        h = b.rms_norm(x, prefix + "input_layernorm.weight")
        x = b.add(x, attention(b, h, config, prefix + "self_attn."))
        h = b.rms_norm(x, prefix + "post_attention_layernorm.weight")
        x = b.add(x, gated_mlp(b, h, config.intermediate_size, prefix + "mlp."))
    b.layer = None
    x = b.rms_norm(b.select(x), "model.norm.weight")
    head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    b.linear(x, config.vocab_size, head + ".weight")
    return graph
