"""What a tokenizer may cost, and what the library must never see: it aborts the process, runs for
ever or panics on stderr."""

import base64
import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import small_tokenizers as small

from caldrix.errors import RefusedError
from caldrix.text import charsmap, json_file, tokenizer_limits
from caldrix.text.gguf_tokenizer import tokenizer_from_gguf
from caldrix.text.tokenizer import load_tokenizer
from caldrix.text.tokenizer_limits import check_steps, small_parts

Json = dict[str, Any]


def replace(pattern: object, content: str) -> Json:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(key: str, *steps: Json) -> Json:
    return {"type": "Sequence", key: list(steps)}


def saved(directory: Path, **parts: object) -> Path:
    """A byte-level tokenizer with other parts."""
    document = json.loads(small.byte_level().to_str()) | parts
    (directory / "tokenizer.json").write_text(json.dumps(document), encoding="utf8")
    return directory


DOUBLE = replace({"String": "a"}, "aa")
BYTES: Json = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
BYTES |= {"use_regex": True}

# Each ended the process (out of memory, which the library does not survive) or wrote a panic.
NORMALIZERS = {
    "doubling": (sequence("normalizers", *[DOUBLE] * 40), "4096 times as long"),
    "nested doubling": (
        sequence("normalizers", sequence("normalizers", *[DOUBLE] * 20), *[DOUBLE] * 20),
        "4096 times as long",
    ),
    "long replacement": (replace({"String": "a"}, "a" * 5000), "4096 times as long"),
    "long replacement of anything": (replace({"Regex": "."}, "a" * 5000), "4096 times"),
    "long start": ({"type": "Prepend", "prepend": "a" * 2000}, "a Prepend step of more than 1000"),
    "empty pattern": (replace({"String": ""}, "a"), "Replace step that looks for an empty string"),
    "many steps": (sequence("normalizers", *[{"type": "Lowercase"}] * 65), "65 steps; at most 64"),
    "decompositions": (sequence("normalizers", *[{"type": "NFKD"}] * 4), "4096 times as long"),
    "character map": (
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        "precompiled_charsmap is damaged",
    ),
    "no base64": ({"type": "Precompiled", "precompiled_charsmap": "\u00e9"}, "is damaged"),
}


@pytest.mark.parametrize("what", NORMALIZERS)
def test_a_normalizer_without_bounds_is_refused(what: str, tmp_path: Path) -> None:
    step, reason = NORMALIZERS[what]
    with pytest.raises(RefusedError, match=f"^{tmp_path}/tokenizer.json: .*{reason}"):
        load_tokenizer(saved(tmp_path, normalizer=step))


def test_added_tokens_do_not_meet_a_normalizer_before_it_is_checked(tmp_path: Path) -> None:
    entry = json.loads(small.bytes_and_controls().to_str())["added_tokens"][0]
    entries = [entry | {"content": "a" * 9, "normalized": True}]
    step = sequence("normalizers", *[DOUBLE] * 40)
    with pytest.raises(RefusedError, match="4096 times as long"):
        load_tokenizer(saved(tmp_path, normalizer=step, added_tokens=entries))


def test_a_pre_tokenizer_without_bounds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="pre_tokenizer: its steps could make a text 4096 times"):
        load_tokenizer(saved(tmp_path, pre_tokenizer=sequence("pretokenizers", *[BYTES] * 7)))
    empty = {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}
    with pytest.raises(RefusedError, match="a Split step that looks for an empty string"):
        load_tokenizer(saved(tmp_path, pre_tokenizer=empty))


def test_chains_that_models_have_are_taken() -> None:
    quotes = [replace({"String": "``"}, '"'), replace({"String": "''"}, '"')]
    albert = sequence("normalizers", *quotes, {"type": "NFKD"}, {"type": "Lowercase"})
    albert["normalizers"] += [{"type": "StripAccents"}, replace({"Regex": " {2,}"}, " ")]
    check_steps({"normalizer": albert, "pre_tokenizer": {"type": "Metaspace"}})
    llama = sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"})
    llama["normalizers"] += [replace({"String": " "}, "\u2581")]
    check_steps({"normalizer": llama, "pre_tokenizer": None})
    split = {"type": "Split", "pattern": {"Regex": r"\p{L}+"}}
    check_steps({"pre_tokenizer": sequence("pretokenizers", split, BYTES)})


def test_dropout_is_for_training_alone(tmp_path: Path) -> None:
    directory = small.save(small.byte_level(), tmp_path)
    path = directory / "tokenizer.json"
    want = load_tokenizer(directory).encode("user user user")
    document = json.loads(path.read_bytes())
    document["model"]["dropout"] = 0.5
    path.write_text(json.dumps(document), encoding="utf8")
    tokenizer = load_tokenizer(directory)
    assert all(tokenizer.encode("user user user") == want for _ in range(20))


def test_wordpiece_words_without_end_are_refused(tmp_path: Path) -> None:
    model = {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##"}
    model |= {"vocab": {"a": 0, "##a": 1}}
    tokenizer = load_tokenizer(saved(tmp_path, model=model | {"max_input_chars_per_word": 100}))
    assert tokenizer.encode_text("aaa")
    with pytest.raises(RefusedError, match="max_input_chars_per_word is 100000; up to 256"):
        load_tokenizer(saved(tmp_path, model=model | {"max_input_chars_per_word": 100_000}))


# --- the small parts of a file


def test_the_parts_beside_the_model_are_read_wherever_they_stand() -> None:
    document = json.loads(small.bytes_and_controls().to_str())
    parts = {key: value for key, value in document.items() if key != "model"}
    model = {"model": document["model"]}
    assert small_parts(json.dumps(parts | model).encode()) == parts
    assert small_parts(json.dumps(model | parts).encode()) == parts
    assert small_parts(json.dumps(parts | model, indent=2).encode()) == parts
    decoy = {"decoder": {"model": {"normalizer": 1}}}
    for order in (parts | decoy | model, decoy | model | parts, model | decoy | parts):
        want = {key: value for key, value in order.items() if key != "model"}
        assert small_parts(json.dumps(order).encode()) == want


@pytest.mark.parametrize("key", ['"normalizer"', r'"\u006eormalizer"', r'"normal\u0069zer"'])
def test_a_step_behind_the_model_is_not_missed(key: str) -> None:
    first = b'{"normalizer": null, "model": {"type": "BPE", "vocab": {}}, '
    parts = small_parts(first + key.encode() + b': {"type": "NFC"}}')
    assert parts == {"normalizer": {"type": "NFC"}}


# --- how much of it


def test_more_values_than_the_vocabulary_needs_are_refused(tmp_path: Path) -> None:
    directory = saved(tmp_path, model={"type": "BPE", "vocab": {}, "merges": [[]] * 150_000})
    with pytest.raises(RefusedError, match=r"more JSON values .* than a vocabulary of 272 tokens"):
        load_tokenizer(directory, 272)
    assert load_tokenizer(small.save(small.byte_level(), tmp_path), 272).n_tokens < 272


def test_a_large_configuration_beside_it_is_refused(tmp_path: Path) -> None:
    directory = small.save(small.byte_level(), tmp_path)
    path = directory / "tokenizer_config.json"
    path.write_text('{"a": [' + "[]," * json_file.MAX_MARKS + "1]}")
    with pytest.raises(RefusedError, match=r"tokenizer_config\.json: more than 400000 JSON values"):
        load_tokenizer(directory)
    path.write_bytes(b" " * (json_file.MAX_BYTES + 1))
    with pytest.raises(RefusedError, match=r"tokenizer_config\.json: 16000001 bytes; at most"):
        load_tokenizer(directory)
    path.write_text("[" * 900 + "]" * 900)  # parsed, and too deep to be shown
    with pytest.raises(RefusedError, match="a JSON object is needed"):
        load_tokenizer(directory)


def scored(tokens: list[str]) -> dict[str, object]:
    values = {"model": "llama", "tokens": tokens, "scores": [0.0] * len(tokens)}
    return {"tokenizer.ggml." + key: value for key, value in values.items()}


def test_tokens_without_end_are_refused_before_they_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RefusedError, match=r"tokenizer\.ggml\.tokens are too long"):
        tokenizer_from_gguf(scored(["a", "b" * 20_000]))  # ran for hours with a longer one
    monkeypatch.setattr(tokenizer_limits, "SPARE", 100)
    powers = ["a" * n for n in range(1, 60)]  # every cut of every token makes a merge
    with pytest.raises(RefusedError, match="can be joined in more than 336 ways"):
        tokenizer_from_gguf(scored(powers))
    assert tokenizer_from_gguf(scored(powers[:20])).encode_text("aaaa")


# --- SentencePiece's table


def trie(units: dict[int, int], strings: bytes, n: int = 256) -> bytes:
    words = [units.get(i, 0) for i in range(n)]
    return struct.pack("<I", 4 * n) + struct.pack(f"<{n}I", *words) + strings


def node(label: int, offset: int, has_leaf: bool = False) -> int:
    return label | has_leaf << 8 | offset << 10


# "a" becomes "xyz": the root's children are at 0 ^ label, the value of "a" at 97 ^ 96.
A = {0: node(0, 0), 97: node(97, 96, True), 97 ^ 96: 1 << 31 | 0}


def test_a_whole_table_says_what_it_may_put_in() -> None:
    assert charsmap.longest_replacement(trie(A, b"xyz\0")) == 3


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"\1\0\0",
        struct.pack("<I", 0),  # no root
        trie(A, b"xyz\0", 100),  # the root's children end past the trie
        trie(A | {97: node(97, 4096, True)}, b"xyz\0"),
        trie(A | {97 ^ 96: 1 << 31 | 5}, b"xyz\0"),
        trie(A | {97 ^ 96: 1 << 31 | 1}, "\u00e9\0".encode()),  # inside a character
        trie(A, b"\xff\0"),
        trie(A, b"xyz\0")[:-5],
    ],
    ids=range(9),
)
def test_a_damaged_table_is_known_before_the_library_panics(table: bytes) -> None:
    assert charsmap.longest_replacement(table) is None


def test_a_table_judged_whole_never_makes_the_library_panic(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng, n_whole = random.Random(4), 0
    text = "".join(map(chr, range(1, 400)))
    for _ in range(400):
        units = dict(A)
        for _ in range(rng.randrange(60)):
            label, offset = rng.randrange(256), rng.choice([0, 96, rng.randrange(1 << 12)])
            unit = rng.choice([node(label, offset, rng.random() < 0.5), 1 << 31 | rng.randrange(6)])
            units[rng.randrange(256)] = unit
        table = trie(units, b"xyz\0\xc3\xa9\0")
        if charsmap.longest_replacement(table) is None:
            continue
        n_whole += 1
        encoded = base64.b64encode(table).decode()
        step = {"type": "Precompiled", "precompiled_charsmap": encoded}
        load_tokenizer(saved(tmp_path, normalizer=step)).encode(text)
    assert n_whole > 20
    assert not capfd.readouterr().err
