"""Damage to the model directories of load_bases.py: one function a kind, drawn by a seed.

Weight files, their index, configurations, tokenizers and templates. The writers stay truthful about
everything but the thing spoilt.
"""

import json
import random
from typing import Any

import hostile
from load_bases import Base
from load_cases import COUNTS, FLOATS, STRINGS, Case, Expect, Mutation, cut, spoilt_data
from model_files import write_safetensors

JSON_VALUES: list[Any] = [None, True, False, 0, -1, 1, 2, 5, 64, 2**20, 2**31, 2**63, 2**64, 10**30]
JSON_VALUES += [10**400, -(10**400), 0.5, -0.0, 1e-320, 1e30, 1e308, *FLOATS[-3:], *STRINGS]
JSON_VALUES += [[], {}, [[]], [1, 2], ["a"], {"a": 1}, [None], "yarn", "llama3", "dynamic", "gelu"]
# Marks that are replaced after json.dumps, which cannot write such things.
DEEP, HUGE = "@deep@", "@huge@"
JSON_VALUES += [DEEP, HUGE]


def to_json(value: object) -> bytes:
    text = json.dumps(value)
    text = text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000)
    return text.replace(f'"{HUGE}"', "1" + "0" * 5000).encode()


def spoilt_json(rng: random.Random, value: Any) -> Any:
    """A JSON value with one thing in it changed, gone or put beside, at a random depth."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice([*value])
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: spoilt_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        i = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:i] + value[i + rng.choice([-1, 1]) :]
        return [*value[:i], spoilt_json(rng, value[i]), *value[i + 1 :]]
    return rng.choice(JSON_VALUES)


def config_field(rng: random.Random, base: Base) -> Case:
    """One field of config.json."""
    config = json.loads(base.files["config.json"])
    key = rng.choice([*config, *CONFIG_KEYS])
    same = key.startswith("x_")
    if key in config and rng.random() < 0.15:
        del config[key]
    else:
        value = rng.choice(JSON_VALUES)
        same = same and value != value_that_json_lacks(value)
        config[key] = value
    note = f"{key} = {str(config.get(key))[:60]}"
    return Case(base.changed({"config.json": to_json(config)}), Expect.ANY, note)


def value_that_json_lacks(value: object) -> object:
    return value if value in (DEEP, HUGE) or value != value else None


CONFIG_KEYS = ["x_unknown", "head_dim", "num_key_value_heads", "attention_bias", "mlp_bias"]
CONFIG_KEYS += ["rope_scaling", "rope_parameters", "partial_rotary_factor", "quantization_config"]
CONFIG_KEYS += ["sliding_window", "use_sliding_window", "torch_dtype", "hidden_act"]

ROPE_FIELDS = ["rope_type", "type", "factor", "low_freq_factor", "high_freq_factor", "rope_theta"]
ROPE_FIELDS += ["original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"]
ROPE_FIELDS += ["mscale", "mscale_all_dim", "truncate", "partial_rotary_factor"]


def config_rope(rng: random.Random, base: Base) -> Case:
    """The rope scaling: of any kind, with one or two hostile fields."""
    config = json.loads(base.files["config.json"])
    kind = rng.choice(["linear", "llama3", "yarn", "default"])
    scaling: dict[str, Any] = {"rope_type": kind, "factor": 4.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    for _ in range(rng.choice([1, 1, 2])):
        numbers = [*FLOATS, *COUNTS, 1e-3, 0.01, 1e12, 10**400]
        scaling[rng.choice(ROPE_FIELDS)] = rng.choice(
            [rng.choice(numbers), rng.choice(JSON_VALUES)]
        )
    config[rng.choice(["rope_scaling", "rope_parameters"])] = scaling
    return Case(base.changed({"config.json": to_json(config)}), note=str(scaling)[:200])


TEXT_FILES = ["tokenizer.json", "tokenizer.json", "tokenizer_config.json"]
TEXT_FILES += ["generation_config.json", "chat_template.jinja", "chat_template.json"]


def text_file(rng: random.Random, base: Base) -> Case:
    """Any of the JSON files with one thing in it changed, or a template."""
    path = rng.choice(TEXT_FILES)
    if path == "chat_template.jinja":
        raw = rng.choice(STRINGS).encode()
    elif path == "chat_template.json":
        raw = to_json({"chat_template": rng.choice([*JSON_VALUES, [{"name": "a", "template": 1}]])})
    else:
        raw = to_json(spoilt_json(rng, json.loads(base.files[path])))
    expect = Expect.ANY
    return Case(base.changed({path: raw}), expect, path)


def json_bytes(rng: random.Random, base: Base) -> Case:
    """Bytes of a JSON file or a template, whatever they mean."""
    paths = [path for path in sorted(base.files) if not path.endswith(".safetensors")]
    path = rng.choice(paths)
    raw = bytearray(base.files[path])
    hostile.spoil_bytes(rng, raw, len(raw))
    return Case(base.changed({path: bytes(raw)}), note=path)


def shard_header(rng: random.Random, base: Base) -> Case:
    """The header of a weight file, or any of its bytes."""
    path = rng.choice(sorted(base.shards))
    return Case(base.changed({path: hostile.spoil_safetensors(rng, base.files[path])}), note=path)


def shard_tensor(rng: random.Random, base: Base) -> Case:
    """A tensor of another name, dtype or shape, gone, or one too many; the header is truthful."""
    path = rng.choice(sorted(base.shards))
    held = dict(base.shards[path])
    name = rng.choice(list(held))
    dtype, shape, data = held[name]
    expect = Expect.REFUSED
    match rng.randrange(6):
        case 0:
            del held[name]
        case 1:
            new = rng.choice(["x", name + "x", "model.layers.9.mlp.up_proj.weight"])
            held = {new if key == name else key: value for key, value in held.items()}
        case 2:
            bits = {"F32": ["I32", "U32"], "F16": ["I16", "BF16"], "BF16": ["U16", "F16"]}[dtype]
            other = rng.choice(bits)
            held[name] = (other, shape, data)
            expect = Expect.REFUSED if other[0] in "IU" else Expect.ANY
        case 3:
            count = len(data) // {"F32": 4}.get(dtype, 2)
            new_shape = rng.choice([[count], [count, 1], [1, *shape], shape[::-1], [2, count // 2]])
            held[name] = (dtype, new_shape, data)
            expect = Expect.ANY if new_shape == shape else Expect.REFUSED
        case 4:
            extra = rng.choice(
                ["stray.weight", "lm_head.bias", "model.layers.5.mlp.up_proj.weight"]
            )
            held[extra] = (dtype, shape, data)
            # An index lists every tensor there is; what it does not list is left alone.
            expect = Expect.REFUSED if len(base.shards) == 1 else Expect.SAME
        case 5:
            held["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", [2], bytes(8))
            expect = Expect.SAME
    return Case(base.changed({path: write_safetensors(held)}), expect, f"{path}: {name}")


def shard_data(rng: random.Random, base: Base) -> Case:
    """The weights of one tensor."""
    path = rng.choice(sorted(base.shards))
    held = dict(base.shards[path])
    name = rng.choice(list(held))
    dtype, shape, data = held[name]
    held[name] = (dtype, shape, spoilt_data(rng, data, {"F32": 4}.get(dtype, 2)))
    return Case(base.changed({path: write_safetensors(held)}), note=name)


def shard_index(rng: random.Random, base: Base) -> Case:
    """The index, or the shards it names."""
    path = "model.safetensors.index.json"
    if path not in base.files:
        return shard_header(rng, base)
    index = json.loads(base.files[path])
    shards = sorted(base.shards)
    name = rng.choice(list(index["weight_map"]))
    expect = Expect.REFUSED
    match rng.randrange(7):
        case 0:
            bad = [
                "../x",
                "/etc/passwd",
                "",
                ".",
                "x.safetensors",
                "\n",
                5,
                None,
                ["a"],
                "a" * 3000,
            ]
            index["weight_map"][name] = rng.choice([*bad, f"../{shards[0]}", "config.json"])
        case 1:
            old = index["weight_map"][name]
            index["weight_map"][name] = rng.choice([s for s in shards if s != old])
        case 2:
            del index["weight_map"][name]
        case 3:
            index["weight_map"]["model.x"] = rng.choice(shards)
        case 4:
            return Case(base.changed({rng.choice(shards): None}), expect, "a shard is missing")
        case 5:
            one, other = rng.sample(shards, 2)
            swapped = {one: base.files[other], other: base.files[one]}
            return Case(base.changed(swapped), expect, "shards swapped")
        case 6:
            return Case(base.changed({path: to_json(spoilt_json(rng, index))}), note="index")
    return Case(base.changed({path: to_json(index)}), expect, "index")


def nothing_real(rng: random.Random, base: Base) -> Case:
    """Things that mean nothing: blanks in JSON, other order, files beside, metadata."""
    match rng.randrange(4):
        case 0:
            config = json.loads(base.files["config.json"])
            raw = json.dumps(dict(reversed(config.items())), indent=3).encode()
            files = base.changed({"config.json": raw})
        case 1:
            files = base.changed({"notes.txt": rng.randbytes(40), "other.gguf": b"GGUF"})
        case 2:
            path = rng.choice(sorted(base.shards))
            held = base.shards[path]
            files = base.changed({path: write_safetensors(held, {"a": "b" * rng.randrange(99)})})
        case _:
            path = rng.choice(sorted(base.shards))
            held = dict(reversed(base.shards[path].items()))
            files = base.changed({path: write_safetensors(held)})
    return Case(files, Expect.SAME)


DIRECTORY_DAMAGE: list[Mutation] = [
    config_field, config_field, config_rope, text_file, json_bytes, shard_header, shard_header,
    shard_tensor, shard_data, shard_index, nothing_real, cut
]  # fmt: skip
