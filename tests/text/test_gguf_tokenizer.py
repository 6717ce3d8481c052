"""GGUF metadata give the tokenizer that tokenizer.json would give, or one line of refusal."""

import random
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import small_tokenizers as small
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from caldrix.errors import RefusedError
from caldrix.text.gguf_tokenizer import PRE_TYPES, tokenizer_from_gguf
from caldrix.text.tokenizer import load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def metadata(**keys: Any) -> dict[str, object]:
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def byte_level(pre: str | None = "smollm", **keys: Any) -> dict[str, object]:
    """The vocabulary of small.byte_level, a control token and one that is matched as it stands."""
    vocab = small.byte_level().get_vocab(with_added_tokens=False)
    tokens = [*sorted(vocab, key=vocab.__getitem__), "<|end|>", "<tool>", "[PAD0]"]
    given: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [NORMAL] * len(vocab) + [CONTROL, USER, UNUSED],
        "merges": [f"{left} {right}" for left, right in small.MERGES],
        "bos_token_id": len(vocab),
        "eos_token_id": len(vocab),
    }
    return metadata(**{**given, **keys})


def words(data: Mapping[str, object], text: str) -> list[str]:
    """How the text is cut before merging; only the library knows."""
    library = tokenizer_from_gguf(data)._library
    return [text[a:b] for _, (a, b) in library.pre_tokenizer.pre_tokenize_str(text)]


# --- words


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "I'm 1234 you'RE", ["I", "'m", " 1234", " you", "'", "RE"]),
        ("gpt-2", "a\n\n x  y", ["a", "\n\n", " x", " ", " y"]),
        ("gpt-2", "<|im_end|>!\r\n\ty", ["<|", "im", "_", "end", "|>!", "\r\n", "\t", "y"]),
        ("smollm", "I'm 1234³", ["I", "'m", " ", "1", "2", "3", "4", "³"]),
        ("smollm", "x =5\n", ["x", " =", "5", "\n"]),
        ("llama-bpe", "I'm 1234567 you'RE", ["I", "'m", " ", "123", "456", "7", " you", "'RE"]),
        ("llama-bpe", "a\n\n x  y.\r\nz", ["a", "\n\n", " x", " ", " y", ".\r\n", "z"]),
        ("qwen2", "I'm 123 you'RE", ["I", "'m", " ", "1", "2", "3", " you", "'RE"]),
        ("qwen2", "(hello)क्षि", ["(hello", ")क", "्ष", "ि"]),
        ("qwen35", "(hello)क्षि 12", ["(hello", ")क्षि", " ", "1", "2"]),
        ("default", "it's 12345 <b", ["it", "'", "s", " ", "123", "45", " ", "<", "b"]),
    ],
)
def test_words_are_cut_as_the_pre_type_says(pre: str, text: str, expected: list[str]) -> None:
    assert words(byte_level(pre), text) == expected


def test_every_pre_type_keeps_every_byte() -> None:
    for pre in PRE_TYPES:
        tokenizer = tokenizer_from_gguf(byte_level(pre))
        text = "I'm 1234 you'RE\n\n x  १२ <|end|>!\r\n\ty³ 日本🫠 "
        assert tokenizer.decode(tokenizer.encode_text(text), False) == text


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_qwen_words_are_those_of_its_tokenizer_json(text: str) -> None:
    """NFC too, which GGUF does not say."""
    assert QWEN.encode_text(text) == QWEN_LIBRARY.encode(text).ids


QWEN = tokenizer_from_gguf(byte_level("qwen2", token_type=None))
QWEN_LIBRARY = small.byte_level()
QWEN_LIBRARY.pre_tokenizer = small.qwen_words()
QWEN_LIBRARY.encode_special_tokens = True


def test_a_word_in_the_vocabulary_wins_over_merges_where_the_pre_type_says_so() -> None:
    tokens = byte_level()["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    keys = {"tokens": [*tokens, "zzz"], "token_type": None}
    assert len(tokenizer_from_gguf(byte_level("llama-bpe", **keys)).encode_text("zzz")) == 1
    assert len(tokenizer_from_gguf(byte_level("smaug-bpe", **keys)).encode_text("zzz")) == 3


def test_a_file_without_a_pre_type_gets_the_default_and_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert words(byte_level(None), "a 12345") == words(byte_level("default"), "a 12345")
    note = "no tokenizer.ggml.pre; words are cut as for 'default'"
    assert capsys.readouterr().err == f"caldrix: gguf: {note}\n"


# --- tokens


def test_token_types_decide_what_is_matched_and_what_is_special() -> None:
    tokenizer = tokenizer_from_gguf(byte_level())
    end, tool = tokenizer.token_id("<|end|>"), tokenizer.token_id("<tool>")
    assert end is not None
    assert tool is not None
    assert tokenizer.encode("a<|end|><tool>")[1:] == [end, tool]
    assert end not in tokenizer.encode_text("a<|end|>")
    assert tokenizer.encode_text("<tool>") == [tool]
    assert tokenizer.token_id("[PAD0]") not in tokenizer.encode("[PAD0]")
    assert tokenizer.is_special(end)
    assert not tokenizer.is_special(tool)
    assert tokenizer.decode([end, tool]) == "<tool>"
    assert (tokenizer.bos_id, tokenizer.eos_id) == (end, end)
    assert tokenizer.vocab_size == tool + 2


@pytest.mark.parametrize(
    ("pre", "keys", "adds"),
    [
        ("smollm", {}, False),
        ("smollm", {"add_bos_token": True}, True),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos_token": False}, False),
        ("llama-bpe", {"bos_token_id": None}, False),
    ],
)
def test_bos_is_added_by_the_flag_or_else_by_the_pre_type(
    pre: str, keys: dict[str, object], adds: bool
) -> None:
    tokenizer = tokenizer_from_gguf(byte_level(pre, **keys))
    assert tokenizer.adds_bos == adds
    bos = tokenizer.token_id("<|end|>")
    assert tokenizer.encode("b")[:-1] == [bos] * adds
    assert tokenizer.encode("<|end|>b")[:-1] == [bos]


def test_eos_is_added_by_the_flag() -> None:
    tokenizer = tokenizer_from_gguf(byte_level(add_eos_token=True))
    assert tokenizer.encode("b")[-1] == tokenizer.eos_id


def test_empty_tokens_get_a_name() -> None:
    tokens = byte_level()["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokenizer = tokenizer_from_gguf(byte_level(tokens=[*tokens, "", ""], token_type=None))
    assert tokenizer.vocab_size == len(tokens) + 2
    assert tokenizer.token_id(f"[EMPTY_{len(tokens)}]") == len(tokens)


def test_a_vocabulary_may_have_no_merges() -> None:
    tokenizer = tokenizer_from_gguf(byte_level(merges=[]))
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode_text("user")] == [
        b"u",
        b"s",
        b"e",
        b"r",
    ]


def test_the_page_lists_the_pre_types() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "text.md"
    assert f": {', '.join(PRE_TYPES)} |" in page.read_text(encoding="utf8")


# --- SentencePiece


def sentencepiece(pieces: Mapping[str, float], **keys: Any) -> dict[str, object]:
    """A "llama" vocabulary: unknown, BOS, EOS, the bytes, then the pieces."""
    names = [f"<0x{i:02X}>" for i in range(256)]
    given: dict[str, Any] = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *names, *pieces],
        "scores": [0.0] * 259 + list(pieces.values()),
        "token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return metadata(**{**given, **keys})


PIECES = {"▁": -9.0, "a": -9.1, "b": -9.2, "s": -9.3, "<": -9.4, "/": -9.5, ">": -9.6, "é": -9.7}
PIECES |= {"▁a": -1.0, "ab": -2.0, "▁ab": -3.0, "</": -4.0, "s>": -5.0, "▁▁": -6.0}


def best_first(pieces: Mapping[str, float], text: str) -> list[str]:
    """SentencePiece's own way: join the best neighbours, the first of equals, until none join."""
    symbols = list(("▁" + text if text else "").replace(" ", "▁"))
    while True:
        pairs = [
            (-pieces[left + right], i)
            for i, (left, right) in enumerate(pairwise(symbols))
            if left + right in pieces
        ]
        if not pairs:
            return [n for s in symbols for n in ([s] if s in pieces else byte_names(s))]
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def byte_names(text: str) -> list[str]:
    return [f"<0x{b:02X}>" for b in text.encode()]


def drawn_pieces(seed: int) -> dict[str, float]:
    """Pieces that each join in one way: of two, transformers' order takes the longer left half."""
    pieces, draw = {p: score for p, score in PIECES.items() if p != "▁ab"}, random.Random(seed)
    for n in range(40):
        joined = draw.choice([*pieces]) + draw.choice([*pieces])
        more = pieces | {joined: pieces.get(joined, -10.0 - n)}
        if all(sum(p[:k] in more and p[k:] in more for k in range(1, len(p))) < 2 for p in more):
            pieces = more
    return pieces


@given(text=st.text("ab s</>é日🫠\n", max_size=20), seed=st.integers(0, 9))
def test_scores_merge_as_sentencepiece_does(text: str, seed: int) -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece(pieces := drawn_pieces(seed)))
    names = [tokenizer.token_id(name) for name in best_first(pieces, text)]
    assert tokenizer.encode_text(text) == names
    assert tokenizer.decode(names) == text


def llama_library(pieces: Mapping[str, float]) -> Tokenizer:
    """The same vocabulary as a tokenizer.json of Llama 2 has it."""
    tokens = sentencepiece(pieces)["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "ab"), ("<", "/"), ("s", ">"), ("▁", "▁")]
    vocab = {token: i for i, token in enumerate(tokens)}
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    library = Tokenizer(model)
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    library.normalizer = normalizers.Sequence(steps)
    replace, fuse = decoders.Replace("▁", " "), decoders.Fuse()
    parts = [replace, decoders.ByteFallback(), fuse, decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence(parts)
    names = ["<unk>", "<s>", "</s>"]
    library.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    return library


@given(text=st.lists(st.sampled_from(["a", "b", " ", "<s>", "</s>", "é", "日", "\n"])).map("".join))
def test_a_llama_vocabulary_reads_as_its_tokenizer_json(text: str) -> None:
    ids = LLAMA.encode(text, add_special_tokens=False)
    assert ids == LIBRARY.encode(text).ids
    assert LLAMA.decode(ids) == LIBRARY.decode(ids)
    assert {1, 2}.isdisjoint(LLAMA.encode_text(text))


LLAMA, LIBRARY = tokenizer_from_gguf(sentencepiece(PIECES)), llama_library(PIECES)


def test_a_llama_vocabulary_adds_bos_and_a_space_unless_told_not_to() -> None:
    assert LLAMA.encode("a") == [1, LLAMA.token_id("▁a")]
    assert LLAMA.encode("<s>a") == [1, LLAMA.token_id("▁a")]
    plain = tokenizer_from_gguf(sentencepiece(PIECES, add_space_prefix=False, add_bos_token=False))
    assert plain.encode("a a") == [plain.token_id("a"), plain.token_id("▁a")]
    assert plain.decode(plain.encode(" a")) == " a"


def test_without_byte_tokens_unknown_characters_are_the_unknown_token() -> None:
    tokens = ["<unk>", "<s>", "</s>", *PIECES]
    types = [UNKNOWN, CONTROL, CONTROL] + [NORMAL] * len(PIECES)
    scores = [0.0] * 3 + list(PIECES.values())
    data = sentencepiece(PIECES, tokens=tokens, token_type=types, scores=scores)
    tokenizer = tokenizer_from_gguf(data)
    assert tokenizer.encode_text("a日本a") == [tokenizer.token_id("▁a"), 0, tokenizer.token_id("a")]


# --- Unigram


UNIGRAM_TOKENS = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "ab", "▁a", "日", "<", "/", "s", ">"]
UNIGRAM_SCORES = [0.0, 0.0, 0.0, -2.0, -3.0, -3.1, -3.5, -2.5, -5.0, -6.0, -6.1, -6.2, -6.3]


def unigram(**keys: Any) -> dict[str, object]:
    given: dict[str, Any] = {
        "model": "t5",
        "tokens": UNIGRAM_TOKENS,
        "scores": UNIGRAM_SCORES,
        "token_type": [CONTROL, CONTROL, UNKNOWN] + [NORMAL] * 10,
        "eos_token_id": 1,
        "unknown_token_id": 2,
    }
    return metadata(**{**given, **keys})


@given(text=st.lists(st.sampled_from(["a", "b", " ", "ab", "</s>", "日", "x"])).map("".join))
def test_a_unigram_vocabulary_reads_as_the_library_reads_it(text: str) -> None:
    vocab = list(zip(UNIGRAM_TOKENS, UNIGRAM_SCORES, strict=True))
    library = Tokenizer(models.Unigram(vocab, 2, False))
    library.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    library.decoder = decoders.Metaspace("▁", "always")
    library.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer = tokenizer_from_gguf(unigram())
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == library.encode(text).ids
    assert tokenizer.encode(text) == [*ids, 1]
    assert tokenizer.decode(ids, False) == library.decode(ids, skip_special_tokens=False)
    assert 1 not in tokenizer.encode_text(text)


def test_a_unigram_vocabulary_may_fold_spaces() -> None:
    tokenizer = tokenizer_from_gguf(unigram(remove_extra_whitespaces=True, add_eos_token=False))
    assert tokenizer.encode(" a   b ") == tokenizer.encode("a b")


def test_a_unigram_vocabulary_may_have_a_table_of_characters() -> None:
    """An empty one here: a trie of one node that leads nowhere."""
    table = [*(1024).to_bytes(4, "little"), *[0] * 1024, 0]
    tokenizer = tokenizer_from_gguf(unigram(precompiled_charsmap=table))
    assert tokenizer.encode("ab a") == tokenizer_from_gguf(unigram()).encode("ab a")


# --- hostile metadata


BAD = [
    (byte_level(model=None), "tokenizer.ggml.model is missing"),
    (byte_level(model="bert"), "tokenizer.ggml.model is 'bert'; 'gpt2', 'llama' and 't5'"),
    (byte_level(model=5), "tokenizer.ggml.model is 5; a string"),
    (byte_level("deepseek-v3"), "tokenizer.ggml.pre is 'deepseek-v3'; supported are default"),
    (byte_level("tekken"), "tokenizer.ggml.pre is 'tekken'"),
    (byte_level(pre=[1]), r"tokenizer.ggml.pre is \[1\]; a string"),
    (byte_level(tokens=None), "tokenizer.ggml.tokens is missing"),
    (byte_level(tokens=[]), "tokenizer.ggml.tokens is empty"),
    (byte_level(tokens="abc"), "tokenizer.ggml.tokens is missing or no list"),
    (byte_level(tokens=["a", 1]), "tokenizer.ggml.tokens is no list of strings"),
    (byte_level(tokens=["a", "b", "a"], token_type=None), "has 'a' twice, as 0 and 2"),
    (byte_level(token_type=[1, 2]), "tokenizer.ggml.token_type has 2 entries for 266 tokens"),
    (byte_level(token_type=["1"] * 266), "tokenizer.ggml.token_type is no list of numbers"),
    (byte_level(token_type=7), "tokenizer.ggml.token_type is no list of numbers"),
    (byte_level(merges=None), "tokenizer.ggml.merges is missing"),
    (byte_level(merges=[b"u s"]), "tokenizer.ggml.merges is no list of strings"),
    (byte_level(merges=["u s", "us"]), "tokenizer.ggml.merges holds 'us'; two tokens"),
    (byte_level(merges=["u s e", "u"]), "tokenizer.ggml.merges holds 'u s e'"),
    (byte_level(merges=["u zz"]), "not usable as a tokenizer: .*zz"),
    (byte_level(merges=["u "]), "not usable as a tokenizer"),
    (byte_level(bos_token_id=266), "tokenizer.ggml.bos_token_id is 266; the ids are 0 to 265"),
    (byte_level(bos_token_id=-1), "tokenizer.ggml.bos_token_id is -1"),
    (byte_level(eos_token_id=1.5), "tokenizer.ggml.eos_token_id is 1.5"),
    (byte_level(eos_token_id=True), "tokenizer.ggml.eos_token_id is True"),
    (byte_level(add_bos_token="yes"), "tokenizer.ggml.add_bos_token is 'yes'; true or false"),
    (byte_level(add_bos_token=True, bos_token_id=None), "add_bos_token is true and there is no"),
    (sentencepiece(PIECES, scores=None), "tokenizer.ggml.scores is missing"),
    (sentencepiece(PIECES, scores=[0.0]), "tokenizer.ggml.scores has 1 entries for 273 tokens"),
    (sentencepiece(PIECES, scores=[None] * 273), "tokenizer.ggml.scores is no list of numbers"),
    (sentencepiece(PIECES, unknown_token_id=10**30), "tokenizer.ggml.unknown_token_id is 1000"),
    (sentencepiece(PIECES, add_space_prefix=1), "tokenizer.ggml.add_space_prefix is 1"),
    (unigram(scores=None), "tokenizer.ggml.scores is missing"),
    (unigram(precompiled_charsmap="x"), "tokenizer.ggml.precompiled_charsmap is no list of bytes"),
    (unigram(precompiled_charsmap=[300]), "precompiled_charsmap is no list of bytes"),
    (unigram(precompiled_charsmap=[1, 2, 3]), "precompiled_charsmap is damaged"),
    (unigram(precompiled_charsmap=[4, 0, 0, 0, 1, 1, 1]), "precompiled_charsmap is damaged"),
    (unigram(precompiled_charsmap=[0, 0, 0, 0, 255]), "precompiled_charsmap is damaged"),
    ({}, "tokenizer.ggml.tokens is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "reason"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_named_in_one_line(data: dict[str, object], reason: str) -> None:
    with pytest.raises(RefusedError, match=f"^gguf: .*{reason}") as caught:
        tokenizer_from_gguf(data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [sentencepiece, unigram])
def test_scores_that_are_no_numbers_are_refused(kind: Any, score: float) -> None:
    data = kind(PIECES) if kind is sentencepiece else kind()
    scores = [*data["tokenizer.ggml.scores"][:-1], score]
    with pytest.raises(RefusedError, match=r"tokenizer\.ggml\.scores holds .* a finite number"):
        tokenizer_from_gguf(data | {"tokenizer.ggml.scores": scores})


# --- the real file


@pytest.mark.model
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_the_demo_model_reads_any_text_as_its_tokenizer_json(
    demo: tuple[Any, Any], text: str
) -> None:
    from_gguf, from_json = demo
    ids = from_gguf.encode_text(text)
    assert ids == from_json.encode_text(text)
    assert from_gguf.encode(text) == from_json.encode(text)
    assert from_gguf.decode(ids) == from_json.decode(ids)


@pytest.fixture(scope="module")
def demo(golden: Path, demo_metadata: Mapping[str, object]) -> tuple[Any, Any]:
    return tokenizer_from_gguf(demo_metadata), load_tokenizer(golden / "smollm2-real")
