"""Writes GGUF and safetensors files for the tests, truthful or not.

Every count and length can be overridden, and the GGUF writer notes where each field lies so that a
test can spoil exactly that one. Knows the formats on its own: nothing here comes from caldrix.
"""

import json
import random
import struct
from dataclasses import dataclass, field

# Type number to elements and bytes a block, for the tensors the tests write.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144), 30: (1, 2)}

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
NUMBERS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B"}
NUMBERS |= {U64: "Q", I64: "q", F64: "d"}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def header(n_tensors: int, n_keys: int, version: int = 3) -> bytes:
    return b"GGUF" + u32(version) + u64(n_tensors) + u64(n_keys)


def key(name: str | bytes, value_type: int, value: bytes) -> bytes:
    return text(name) + u32(value_type) + value


def row(name: str | bytes, dims: list[int], type_id: int, offset: int) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(type_id) + u64(offset)


@dataclass
class Written:
    """The bytes of a file and its fields: what each is, where it starts, how long it is."""

    raw: bytearray = field(default_factory=bytearray)
    fields: list[tuple[str, int, int]] = field(default_factory=list)

    def put(self, kind: str, value: bytes) -> None:
        self.fields.append((kind, len(self.raw), len(value)))
        self.raw += value

    def put_text(self, kind: str, value: str) -> None:
        self.put("length", u64(len(value.encode())))
        self.put(kind, value.encode())


def put_value(out: Written, value_type: int, value: object) -> None:
    out.put("value type", u32(value_type))
    if value_type == STRING:
        out.put_text("string", str(value))
    elif value_type == ARRAY:
        item_type, items = value  # type: ignore[misc]
        out.put("value type", u32(item_type))
        out.put("count", u64(len(items)))
        for item in items:
            if item_type == STRING:
                out.put_text("string", item)
            else:
                out.put("number", struct.pack("<" + NUMBERS[item_type], item))
    else:
        out.put("number", struct.pack("<" + NUMBERS[value_type], value))


def write_gguf(
    keys: dict[str, tuple[int, object]],
    tensors: dict[str, tuple[int, list[int], bytes]],
    version: int = 3,
    alignment: int = 32,
) -> Written:
    """keys: name to (type, value), an array's value being (item type, items); tensors: name to
    (type, dims innermost first, data)."""
    out = Written()
    out.put("magic", b"GGUF")
    out.put("version", u32(version))
    out.put("count", u64(len(tensors)))
    out.put("count", u64(len(keys)))
    for name, (value_type, value) in keys.items():
        out.put_text("key", name)
        put_value(out, value_type, value)
    offset = 0
    for name, (type_id, dims, data) in tensors.items():
        out.put_text("tensor name", name)
        out.put("rank", u32(len(dims)))
        for dim in dims:
            out.put("dim", u64(dim))
        out.put("type", u32(type_id))
        out.put("offset", u64(offset))
        offset += len(data) + -len(data) % alignment
    out.put("padding", bytes(-len(out.raw) % alignment))
    for _, _, data in tensors.values():
        out.put("data", data + bytes(-len(data) % alignment))
    return out


def data_of(type_id: int, dims: list[int], seed: int) -> bytes:
    """Random bytes for a tensor; for floats, of ordinary values."""
    elements, size = BLOCKS[type_id]
    n_elements = 1
    for dim in dims:
        n_elements *= dim
    rng = random.Random(seed)
    if type_id == 0:
        return struct.pack(f"<{n_elements}f", *(rng.uniform(-2, 2) for _ in range(n_elements)))
    return rng.randbytes(n_elements // elements * size)


SHAPES = {
    "token_embd.weight": (8, [64, 20]),
    "blk.0.attn_norm.weight": (0, [64]),
    "blk.0.attn_q.weight": (3, [64, 48]),
    "blk.0.attn_k.weight": (2, [64, 16]),
    "blk.0.ffn_down.weight": (12, [256, 3]),
    "blk.0.experts.weight": (30, [6, 5, 3]),
    "output.weight": (1, [64, 7]),
}

KEYS: dict[str, tuple[int, object]] = {
    "general.architecture": (STRING, "llama"),
    "general.alignment": (U32, 32),
    "general.name": (STRING, "a small model"),
    "llama.block_count": (U32, 1),
    "llama.rope.freq_base": (F32, 10000.0),
    "tokenizer.ggml.add_bos_token": (BOOL, 1),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, [f"token{i}" for i in range(20)])),
    "tokenizer.ggml.scores": (ARRAY, (F32, [i / 4 for i in range(20)])),
    "tokenizer.ggml.token_type": (ARRAY, (I32, [1] * 20)),
    "tokenizer.ggml.merges": (ARRAY, (STRING, [])),
    "tokenizer.ggml.eos_token_id": (U64, 3),
}


def sample_gguf(version: int = 3) -> Written:
    """A small file with most value types and eight kinds of tensors."""
    tensors = {
        name: (type_id, dims, data_of(type_id, dims, seed))
        for seed, (name, (type_id, dims)) in enumerate(SHAPES.items())
    }
    return write_gguf(KEYS, tensors, version)


def write_safetensors(
    tensors: dict[str, tuple[str, list[int], bytes]],
    metadata: dict[str, str] | None = None,
) -> bytes:
    entries: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        span = [position, position + len(data)]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": span}
        position += len(data)
    return with_header(json.dumps(entries), b"".join(data for _, _, data in tensors.values()))


def with_header(head: str | bytes, data: bytes = b"") -> bytes:
    raw = head.encode() if isinstance(head, str) else head
    return u64(len(raw)) + raw + data


def sample_safetensors() -> bytes:
    rng = random.Random(7)
    return write_safetensors(
        {
            "model.embed_tokens.weight": ("BF16", [20, 16], rng.randbytes(640)),
            "model.norm.weight": ("F32", [16], rng.randbytes(64)),
            "model.layers.0.mlp.up_proj.weight": ("F16", [3, 5, 2], rng.randbytes(60)),
            "model.scalar": ("F32", [], rng.randbytes(4)),
            "model.empty": ("F32", [0, 4], b""),
            "model.steps": ("I64", [2], rng.randbytes(16)),
            "lm_head.weight": ("BF16", [20, 16], rng.randbytes(640)),
        },
        {"format": "pt"},
    )
