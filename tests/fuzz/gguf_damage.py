"""Damage to the GGUF models of load_bases.py: one function a kind, drawn by a seed.

The writers stay truthful about everything but the thing spoilt, so that the damage gets past the
reader's own checks as far as it can.
"""

import random

import hostile
from load_bases import BLOCKS, Base, Keys, blocks, part_of, written
from load_cases import COUNTS, FLOATS, STRINGS, Case, Expect, Mutation, cut, spoilt_data
from model_files import ARRAY, BOOL, F32, F64, I32, I64, NUMBERS, STRING, U8, U32, U64, write_gguf

RANGES = {U8: 8, 1: 7, 2: 16, 3: 15, U32: 32, I32: 31, U64: 64, I64: 63}
MEANINGLESS = {"general.name"}


def number_of(rng: random.Random, value_type: int) -> object:
    """A hostile number that fits a value type."""
    if value_type == BOOL:
        return rng.choice([0, 1])
    if value_type in (F32, F64):
        return rng.choice(FLOATS)
    bits = RANGES[value_type]
    signed = NUMBERS[value_type].islower()
    low = -(2**bits) if signed else 0
    return rng.choice([n for n in COUNTS if low <= n < 2**bits])


def gguf_value(rng: random.Random) -> tuple[int, object]:
    """Any value: a number, a string, an array of either."""
    value_type = rng.choice([*NUMBERS, STRING, STRING, ARRAY])
    if value_type == STRING:
        return STRING, rng.choice(STRINGS)
    if value_type != ARRAY:
        return value_type, number_of(rng, value_type)
    item_type = rng.choice([*NUMBERS, STRING])
    n = rng.choice([0, 1, 2, 272, 3000])
    if item_type == STRING:
        return ARRAY, (STRING, [rng.choice(STRINGS) for _ in range(n)])
    return ARRAY, (item_type, [number_of(rng, item_type) for _ in range(n)])


def gguf_fields(rng: random.Random, base: Base) -> Case:
    """Counts, lengths, offsets, types and names of one file, or any of its bytes."""
    n = rng.randrange(base.n_parts)
    path = sorted(base.files)[n]
    return Case(base.changed({path: hostile.spoil_gguf(rng, written(base, n))}))


def gguf_number(rng: random.Random, base: Base) -> Case:
    """One of the model's numbers, of its own type or another."""
    names = [key for key, (value_type, _) in base.keys.items() if value_type in NUMBERS]
    keys: Keys = {}
    for key in rng.sample(names, rng.choice([1, 1, 1, 2, 3])):
        value_type = rng.choice([base.keys[key][0], U32, I32, U64, I64, F32, F64])
        keys[key] = (value_type, number_of(rng, value_type))
    return Case(base.with_gguf(base.keys | keys, base.tensors), note=str(keys))


def gguf_key(rng: random.Random, base: Base) -> Case:
    """A key with any value at all, gone, or new."""
    key = rng.choice([*base.keys, *EXTRA_KEYS])
    if "." not in key:
        key = str(base.keys["general.architecture"][1]) + "." + key.replace("/", ".")
    keys = dict(base.keys)
    if key in keys and rng.random() < 0.2:
        del keys[key]
        return Case(base.with_gguf(keys, base.tensors), note=f"no {key}")
    value = gguf_value(rng)
    same = key in MEANINGLESS or key.startswith("x.")
    note = f"{key} = {str(value)[:100]}"
    files = base.with_gguf(keys | {key: value}, base.tensors)
    return Case(files, Expect.SAME if same else Expect.ANY, note)


# Keys with a meaning that the samples do not have; those without a dot belong to the architecture.
EXTRA_KEYS = [
    "x.unknown",
    "x.other",
    "rope/scaling/type",
    "rope/scaling/factor",
    "rope/scale_linear",
]
EXTRA_KEYS += ["rope/dimension_count", "rope/scaling/attn_factor", "rope/scaling/yarn_beta_fast"]
EXTRA_KEYS += ["attention/key_length", "attention/value_length", "vocab_size", "expert_count"]
EXTRA_KEYS += ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.precompiled_charsmap", "split.count"]
EXTRA_KEYS += ["tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.padding_token_id"]
EXTRA_KEYS += ["tokenizer.ggml.add_eos_token", "tokenizer.chat_template.tool_use", "split.no"]


def gguf_list(rng: random.Random, base: Base) -> Case:
    """One of the tokenizer's lists with an item changed, gone, twice or put elsewhere."""
    keys = [key for key, (value_type, _) in base.keys.items() if value_type == ARRAY]
    key = rng.choice(keys)
    item_type, old = base.keys[key][1]  # type: ignore[misc]
    items = list(old)
    at, other = rng.randrange(len(items)), rng.randrange(len(items))
    match rng.randrange(6):
        case 0:
            del items[at:]
        case 1:
            items[at] = items[other]
        case 2:
            items[at], items[other] = items[other], items[at]
        case 3:
            items[at:at] = [items[other]] * rng.choice([1, 1000])
        case 4:
            spoilt = [*STRINGS, "he  ll", " ", "he zz", "zz he", "hell", "h e l"]
            value = rng.choice(spoilt) if item_type == STRING else number_of(rng, item_type)
            items[at] = value
        case 5:
            items = [items[i] for i in rng.sample(range(len(items)), len(items))]
    files = base.with_gguf(base.keys | {key: (ARRAY, (item_type, items))}, base.tensors)
    return Case(files, note=key)


def gguf_tensor_row(rng: random.Random, base: Base) -> Case:
    """A tensor of another name, type or shape, gone, twice, or one too many; the file is truthful
    about its bytes."""
    name = rng.choice(list(base.tensors))
    type_id, dims, data = base.tensors[name]
    tensors = dict(base.tensors)
    needed = name != "rope_freqs.weight"
    match rng.randrange(6):
        case 0:
            del tensors[name]
            # Without output.weight the embedding is the head, as a file without a head says.
            refused = needed and name != "output.weight"
        case 1:
            new = rng.choice(
                ["x", name + "x", rng.choice(list(tensors)), "output.weight", "\u00e9"]
            )
            tensors = {new if key == name else key: value for key, value in tensors.items()}
            refused = new not in base.tensors
        case 2:
            other = rng.choice([t for t in BLOCKS if t != type_id])
            elements = BLOCKS[other][0]
            if dims[0] % elements:
                dims = [elements, dims[0] * (dims[1] if len(dims) > 1 else 1) // elements or 1]
            count = dims[0] * (dims[1] if len(dims) > 1 else 1)
            tensors[name] = (other, dims, blocks(rng, other, count))
            refused = False
        case 3:
            new_dims = rng.choice([dims[::-1], [*dims, 1], [1, *dims], [dims[0]], [dims[0], 2]])
            n_old, n_new = 1, 1
            for dim in dims:
                n_old *= dim
            for dim in new_dims:
                n_new *= dim
            if new_dims[0] % BLOCKS[type_id][0]:
                new_dims, n_new = [*dims, 1], n_old
            data = data if n_old == n_new else blocks(rng, type_id, n_new)
            tensors[name] = (type_id, new_dims, data)
            refused = new_dims != dims and needed and name != "token_embd.weight"
        case 4:
            tensors["blk.7.attn_q.weight"] = tensors[name]
            refused = True
        case _:
            other_name = rng.choice(list(tensors))
            other_tensor = tensors[other_name]
            tensors[other_name], tensors[name] = tensors[name], other_tensor
            refused = tensors[name][1] != dims and "token_embd.weight" not in (name, other_name)
    files = base.with_gguf(base.keys, tensors)
    return Case(files, Expect.REFUSED if refused else Expect.ANY, name)


def gguf_data(rng: random.Random, base: Base) -> Case:
    """The weights of one tensor."""
    name = rng.choice(list(base.tensors))
    type_id, dims, data = base.tensors[name]
    spoilt = spoilt_data(rng, data, BLOCKS[type_id][1])
    return Case(
        base.with_gguf(base.keys, base.tensors | {name: (type_id, dims, spoilt)}), note=name
    )


def gguf_parts(rng: random.Random, base: Base) -> Case:
    """The parts of a split model: one gone, two swapped, one of another set."""
    paths = sorted(base.files)
    if len(paths) == 1:
        keys = base.keys | {
            "split.count": (U32, rng.choice([0, 1, 2, 3, 99999, 100000, 2**32 - 1]))
        }
        return Case(base.with_gguf(keys, base.tensors), note="split.count")
    one, other = rng.sample(paths, 2)
    match rng.randrange(4):
        case 0:
            files, refused = base.changed({one: None}), True
            if one == base.model:
                return Case(base.changed({one: b""}), Expect.REFUSED, "empty first part")
        case 1:
            files, refused = base.changed({one: base.files[other], other: base.files[one]}), True
        case 2:
            files, refused = base.changed({one: base.files[other]}), True
        case _:
            n = rng.randrange(base.n_parts)
            keys, tensors = part_of(base.keys, base.tensors, n, base.n_parts)
            key = rng.choice(["split.no", "split.count", "split.tensors.count"])
            keys[key] = (I32, number_of(rng, I32))
            files = base.changed({paths[n]: bytes(write_gguf(keys, tensors, base.version).raw)})
            refused = False
    return Case(files, Expect.REFUSED if refused else Expect.ANY, "parts")


GGUF_DAMAGE: list[Mutation] = [
    gguf_fields, gguf_fields, gguf_number, gguf_number, gguf_key, gguf_list, gguf_tensor_row,
    gguf_data, gguf_parts, cut
]  # fmt: skip
