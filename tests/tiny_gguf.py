"""The tiny models of tiny.py as GGUF files, written by the gguf package.

Weights take any type the package can quantise; what has no whole blocks in a row stays f32. Llama
rows of q and k are permuted as converters do, llama3 scaling becomes the tensor rope_freqs.weight.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import tiny

from caldrix.models import names
from caldrix.models.config import rope_from_hf
from caldrix.models.rope import RopeConfig, inverse_frequencies

Array = npt.NDArray[np.float32]


def permuted(name: str, values: Array, config: dict[str, Any]) -> Array:
    """Rows j and j + d/2 of each head of q and k side by side, as converters lay them."""
    part = name.split(".")[-2]
    if config["model_type"] != "llama" or part not in ("q_proj", "k_proj"):
        return values
    heads = config["num_attention_heads" if part == "q_proj" else "num_key_value_heads"]
    split = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))


def write_gguf(
    path: Path,
    model: tiny.Tiny,
    types: dict[str, str] | None = None,
    more: dict[str, int] | None = None,
) -> dict[str, Array]:
    """Writes `model`; `types` maps parts of weight names to types (default F32), `more` are numbers
    under `tokenizer.ggml.`. Returns what the file holds, dequantised, by Hugging Face name and in
    Hugging Face order."""
    config = model.config_json()
    writer = gguf.GGUFWriter(path, str(config["model_type"]))
    _add_metadata(writer, config)
    for key, number in (more or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{key}", number)
    held: dict[str, Array] = {}
    for name, values in tiny.weights(model).items():
        wanted = next((t for part, t in (types or {}).items() if part in name), "F32")
        kind = gguf.GGMLQuantizationType[wanted]
        block, _ = gguf.GGML_QUANT_SIZES[kind]
        if values.ndim < 2 or values.shape[-1] % block:
            kind = gguf.GGMLQuantizationType.F32
        raw = gguf.quants.quantize(permuted(name, values, config), kind)
        writer.add_tensor(names.gguf_name(name), raw, raw_dtype=kind)
        held[name] = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    divisors = llama3_divisors(config)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def llama3_divisors(config: dict[str, Any]) -> Array | None:
    rope = rope_from_hf(config, "tiny", head_dim(config), int(config["max_position_embeddings"]))
    if rope.kind != "llama3":
        return None
    plain, _ = inverse_frequencies(RopeConfig("default", rope.theta, rope.dim))
    scaled, _ = inverse_frequencies(rope)
    divisors: Array = (plain / scaled).astype(np.float32)
    return divisors


def head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _add_metadata(w: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(head_dim(config))
    w.add_value_length(head_dim(config))
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(config["rope_theta"])
    w.add_rope_dimension_count(head_dim(config))
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
        w.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    zero = tiny.byte_symbols()[0]  # one merge, of two zero bytes: a list of none is not written
    unused = tiny.VOCAB - 257 - len(tiny.SPECIAL)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    padding = [f"[PAD{i}]" for i in range(unused)]
    w.add_token_list([*tiny.byte_symbols(), *tiny.SPECIAL, 2 * zero, *padding])
    w.add_token_types([1] * 256 + [3] * len(tiny.SPECIAL) + [1] + [5] * unused)
    w.add_token_merges([f"{zero} {zero}"])
    w.add_bos_token_id(tiny.BOS)
    w.add_eos_token_id(tiny.END)
    w.add_add_bos_token(False)
    w.add_chat_template(tiny.CHAT_TEMPLATE)
