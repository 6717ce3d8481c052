"""tokenizer.json: the library's ids, one BOS, typed text without control tokens, refusals."""

import json
import threading
from pathlib import Path

import pytest
import small_tokenizers as small
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from caldrix.errors import RefusedError
from caldrix.text.tokenizer import Tokenizer, load_tokenizer

# words next to added tokens, and characters that normalise, spaces of every kind (bug case B20)
STRINGS = [
    *("x<|a|> user", "x<|a|>user", "<tool>user", "a <m> b", "a<m>b", "e\u0301", "\ufb01", "\t", ""),
    *("a\r\nb", " " * 8, "\u200b", "\ufffd", "use user  user", "<tool", " user", "日本 user 🫠"),
]
PIECES = ["<", "|", "a", "|>", "<|a|>", "<m>", "</s>", "/", " ", "x", "日"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    directory = tmp_path_factory.mktemp("tokenizers")
    return {k: load_tokenizer(small.save(b(), directory / k)) for k, b in small.KINDS.items()}


@pytest.mark.parametrize("kind", small.KINDS)
@pytest.mark.parametrize("text", STRINGS)
def test_raw_text_gives_the_ids_of_the_library(tmp_path: Path, kind: str, text: str) -> None:
    library = small.KINDS[kind]()
    tokenizer = load_tokenizer(small.save(library, tmp_path))
    ids = library.encode(text).ids
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids, False) == library.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
@pytest.mark.parametrize("text", STRINGS)
def test_typed_text_gives_the_ids_of_the_library_without_its_control_tokens(
    tmp_path: Path, kind: str, text: str
) -> None:
    library = small.KINDS[kind]()
    tokenizer = load_tokenizer(small.save(library, tmp_path))
    library.encode_special_tokens = True
    assert tokenizer.encode_text(text) == library.encode(text).ids
    if kind == "byte-level":
        normalized = text.replace("e\u0301", "é")
        assert tokenizer.decode(tokenizer.encode_text(text), False) == normalized


@pytest.mark.parametrize("kind", small.KINDS)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_typed_text_never_becomes_a_control_token(
    saved: dict[str, Tokenizer], kind: str, pieces: list[str]
) -> None:
    tokenizer = saved[kind]
    controls = {tokenizer.token_id(t) for t in ("<|a|>", "<m>", "</s>")}
    assert controls.isdisjoint(tokenizer.encode_text("".join(pieces)))


def test_a_unigram_vocabulary_that_holds_its_control_tokens_spells_them_out(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small.save(small.unigram(), tmp_path))
    end = tokenizer.token_id("</s>")
    assert end in tokenizer.encode("a</s>b")
    ids = tokenizer.encode_text("a</s>b</s></s>")
    assert end not in ids
    assert tokenizer.decode(ids, False) == "a</s>b</s></s>"


def test_control_tokens_put_between_typed_text_are_read_as_the_library_reads_them(
    tmp_path: Path,
) -> None:
    library = small.byte_fallback()
    tokenizer = load_tokenizer(small.save(library, tmp_path))
    a, m = library.token_to_id("<|a|>"), library.token_to_id("<m>")
    expected = library.encode("x<|a|> user <m> b").ids
    assert tokenizer.encode_segments(["x", a, " user ", m, " b"]) == expected
    assert tokenizer.encode_segments([a, a]) == [a, a]
    assert tokenizer.encode_segments([]) == []


def test_markup_that_is_not_marked_special_is_no_control_token_unless_it_is_known_or_named(
    tmp_path: Path,
) -> None:
    library = small.bytes_and_controls()
    names = ["<think>", "</think>", "<tool_call>", "<|fim|>", "<tool>", "  ", "[X]"]
    library.add_tokens([AddedToken(name, special=False, normalized=False) for name in names])
    tokenizer = load_tokenizer(small.save(library, tmp_path))
    plain = {
        "<|bos|>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "<|fim|>",
    }
    assert set(tokenizer.control_tokens()) == plain
    named = set(tokenizer.control_tokens("{{ '<tool>' }}  [X]"))
    assert named == plain | {"<tool>", "[X]"}
    assert tokenizer.encode_text("<think>") == list(b"<think>")
    assert tokenizer.encode_text("a  <tool>") == [
        97,
        tokenizer.token_id("  "),
        tokenizer.token_id("<tool>"),
    ]
    assert tokenizer.encode("<think>") == [tokenizer.token_id("<think>")]
    assert not tokenizer.is_special(tokenizer.token_id("<think>"))
    assert tokenizer.decode(tokenizer.encode("<think>a<|im_end|>")) == "<think>a"


# --- BOS and EOS


@pytest.mark.parametrize(
    ("processed", "config", "expected"),
    [
        (None, {}, []),
        (None, {"add_bos_token": True}, [256]),
        (None, {"add_bos_token": None}, []),
        ("<|bos|>", {}, [256]),
        ("<|bos|>", {"add_bos_token": True}, [256]),
        ("<|bos|>", {"add_bos_token": False}, []),
    ],
)
def test_a_plain_prompt_gets_one_bos(
    tmp_path: Path, processed: str | None, config: dict, expected: list[int]
) -> None:
    library = small.bytes_and_controls(processed)
    small.save(
        library, tmp_path, bos_token={"content": "<|bos|>"}, eos_token="<|im_end|>", **config
    )
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (256, 258)
    assert tokenizer.adds_bos == bool(expected)
    assert tokenizer.encode("hi") == [*expected, *b"hi"]
    assert tokenizer.encode("<|bos|>hi") == [256, *b"hi"]
    assert tokenizer.encode("") == expected
    assert tokenizer.encode("hi", add_special_tokens=False) == list(b"hi")
    assert tokenizer.encode_text("<|bos|>hi") == list(b"<|bos|>hi")


def test_an_eos_is_added_only_where_the_configuration_says_so(tmp_path: Path) -> None:
    library = small.bytes_and_controls()
    small.save(library, tmp_path, eos_token="<|im_end|>", add_eos_token=True)
    assert load_tokenizer(tmp_path).encode("hi") == [*b"hi", 258]


def test_without_a_configuration_there_is_no_bos(tmp_path: Path) -> None:
    small.save(small.bytes_and_controls(), tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.adds_bos) == (None, None, False)


# --- files


def edited(directory: Path, **changes: object) -> Path:
    """Changes entries of tokenizer.json."""
    path = directory / "tokenizer.json"
    value = json.loads(path.read_text(encoding="utf8"))
    path.write_text(json.dumps(value | changes), encoding="utf8")
    return directory


def test_added_tokens_keep_the_ids_of_the_file(tmp_path: Path) -> None:
    """The library numbers added tokens on from the vocabulary, whatever ids the file gives them."""
    directory = small.save(small.bytes_and_controls(), tmp_path, bos_token="<|bos|>")
    entries = json.loads((directory / "tokenizer.json").read_text(encoding="utf8"))["added_tokens"]
    for entry, new_id in zip(entries, (300, 301, 319), strict=True):
        entry["id"] = new_id
    tokenizer = load_tokenizer(edited(directory, added_tokens=entries))
    assert tokenizer.vocab_size == 320
    assert tokenizer.bos_id == 300
    assert tokenizer.token_id("<|im_end|>") == 319
    assert tokenizer.encode("a<|im_end|>b") == [97, 319, 98]
    assert tokenizer.encode_segments(["a", 319, "<|im_end|>"]) == [97, 319, *b"<|im_end|>"]
    assert tokenizer.decode([97, 319, 98, 256, 5000], False) == "a<|im_end|>b"
    assert tokenizer.is_special(319)
    assert not tokenizer.is_special(256)


def test_gaps_in_the_vocabulary_are_no_harm(tmp_path: Path) -> None:
    directory = small.save(small.bytes_and_controls(), tmp_path)
    model = json.loads((directory / "tokenizer.json").read_text(encoding="utf8"))["model"]
    model["vocab"] = {name: i * 2 for name, i in model["vocab"].items()} | {"<|x|>": 600}
    entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    entry |= {"id": 600, "content": "<|x|>", "special": True}
    tokenizer = load_tokenizer(edited(directory, model=model, added_tokens=[entry]))
    assert tokenizer.vocab_size == 601
    assert tokenizer.encode("a<|x|>") == [194, 600]
    assert tokenizer.encode_segments(["a", 600, "<|x|>"]) == [194, 600, *(2 * b for b in b"<|x|>")]
    assert tokenizer.decode([194, 195, 600], False) == "a<|x|>"


def test_a_hostile_gap_is_refused(tmp_path: Path) -> None:
    directory = small.save(small.bytes_and_controls(), tmp_path)
    model = json.loads((directory / "tokenizer.json").read_text(encoding="utf8"))["model"]
    model["vocab"] |= {"xx": 258, "yy": 2**32 - 1}
    tokenizer = load_tokenizer(edited(directory, model=model, added_tokens=[]))
    with pytest.raises(RefusedError, match=r"tokenizer\.json: gaps of \d+ ids in the vocabulary"):
        tokenizer.encode_text("a")


def test_two_tokens_of_one_id_are_refused(tmp_path: Path) -> None:
    directory = small.save(small.bytes_and_controls(), tmp_path)
    entries = json.loads((directory / "tokenizer.json").read_text(encoding="utf8"))["added_tokens"]
    entries[0]["id"] = 65
    with pytest.raises(RefusedError, match=r"'<\|bos\|>' has the id of another token, 65"):
        load_tokenizer(edited(directory, added_tokens=entries))


def test_a_prompt_is_never_cut_or_padded_as_the_file_says(tmp_path: Path) -> None:
    library = small.bytes_and_controls()
    library.enable_truncation(4)
    library.enable_padding(length=9)
    assert load_tokenizer(small.save(library, tmp_path)).encode("abcdef") == list(b"abcdef")


DAMAGED = {
    "empty": b"",
    "cut": b'{"version": "1.0", "added_tokens": [',
    "no object": b"[]",
    "null": b"null",
    "another object": b'{"a": 1}',
    "no utf-8": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "escape": b'{"version": "\\u001b[31m"}',  # the library's message holds it as it is
    "git lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(DAMAGED[what])
    with pytest.raises(RefusedError, match=r"tokenizer\.json: not usable as a tokenizer") as caught:
        load_tokenizer(tmp_path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("key", ["model", "decoder", "normalizer", "pre_tokenizer"])
def test_a_part_that_is_not_known_is_refused(tmp_path: Path, key: str) -> None:
    directory = small.save(small.byte_level(), tmp_path)
    with pytest.raises(RefusedError, match=r"tokenizer\.json: not usable as a tokenizer"):
        load_tokenizer(edited(directory, **{key: {"type": "Quantum"}}))


def test_a_directory_without_the_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=rf"^{tmp_path}: no tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "a JSON object is needed"),
        ('{"bos_token": 5}', "bos_token is 5; a string or an object with content"),
        ('{"eos_token": {"content": []}}', "eos_token is "),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_a_damaged_configuration_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    small.save(small.bytes_and_controls(), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(text, encoding="utf8")
    with pytest.raises(RefusedError, match=rf"tokenizer_config\.json: {reason}"):
        load_tokenizer(tmp_path)


def test_lone_surrogates_are_read_as_replacement_characters(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small.save(small.bytes_and_controls(), tmp_path))
    assert tokenizer.encode("a\ud800") == tokenizer.encode_text("a\udfff") == [97, 0xEF, 0xBF, 0xBD]
    assert tokenizer.token_id("\ud800") is None


def test_threads_share_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small.save(small.byte_level(), tmp_path))
    expected = tokenizer.encode("user <|a|> user" * 50), tokenizer.encode_text("<|a|>user" * 50)
    wrong = []

    def work() -> None:
        for _ in range(50):
            got = tokenizer.encode("user <|a|> user" * 50), tokenizer.encode_text("<|a|>user" * 50)
            if got != expected or tokenizer.decode(got[0], False) != "user <|a|> user" * 50:
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_tokenizer_saved_by_the_library_loads(tmp_path: Path) -> None:
    """The library reads back what it wrote, so a difference here would be ours."""
    for kind, build in small.KINDS.items():
        library = build()
        tokenizer = load_tokenizer(small.save(library, tmp_path / kind))
        assert tokenizer.vocab_size == library.get_vocab_size()
