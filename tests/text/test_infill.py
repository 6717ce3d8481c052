"""Tokens for filling in the middle: found by name or by a file's metadata, and what is asked."""

from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import byte_fallback, byte_level, bytes_and_controls, save

from caldrix.errors import RefusedError
from caldrix.text.infill import InfillTokens, infill_ids, infill_tokens, infill_tokens_of_gguf
from caldrix.text.tokenizer import Tokenizer, load_tokenizer

ROWS = [
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    tuple(f"<\uff5cfim▁{word}\uff5c>" for word in ("begin", "hole", "end")),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
]


def with_tokens(path: Path, kind: Any, tokens: Any, special: bool = True) -> Tokenizer:
    library = kind()
    (library.add_special_tokens if special else library.add_tokens)(list(tokens))
    return load_tokenizer(save(library, path))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("special", [True, False])
def test_the_spellings_of_every_family(tmp_path: Path, row: Any, special: bool) -> None:
    tokenizer = with_tokens(tmp_path, byte_level, [row[2], row[0], row[1]], special)
    found = infill_tokens(tokenizer)
    assert found is not None
    assert found.ids == tuple(tokenizer.token_id(text) for text in row)
    ids = infill_ids(tokenizer, found, "a", "b")
    a, b = tokenizer.encode_text("a"), tokenizer.encode_text("b")
    assert ids == [found.prefix_id, *a, found.suffix_id, *b, found.middle_id]


@pytest.mark.parametrize("row", [ROWS[0][:2], (ROWS[0][0], ROWS[1][1], ROWS[1][2]), ()])
def test_a_vocabulary_without_all_three_has_none(tmp_path: Path, row: Any) -> None:
    assert infill_tokens(with_tokens(tmp_path, byte_level, row)) is None


@pytest.mark.parametrize("kind", [byte_level, byte_fallback])
@pytest.mark.parametrize("special", [True, False])
def test_no_typed_text_is_a_control_token(tmp_path: Path, kind: Any, special: bool) -> None:
    row, more = ROWS[1], ["<|im_end|>"]
    tokenizer = with_tokens(tmp_path, kind, [*row, *more], special)
    found = infill_tokens(tokenizer)
    assert found is not None
    ids = infill_ids(tokenizer, found, "".join(row), "x".join([*row, *more]))
    controls = {*found.ids, *tokenizer.control_tokens().values()}
    assert [i for i in ids if i in controls] == [
        found.prefix_id,
        found.suffix_id,
        found.middle_id,
    ]


def test_no_space_comes_before_what_goes_on(tmp_path: Path) -> None:
    """As the first CodeLlama tools have it: the text before begins like any text, the text behind
    goes on where the gap ends."""
    tokenizer = with_tokens(tmp_path, byte_fallback, ROWS[4])
    found = infill_tokens(tokenizer)
    assert found is not None
    ids = infill_ids(tokenizer, found, "user", "user")
    cut = ids.index(found.suffix_id)
    entries = [[tokenizer._entry(i) for i in part] for part in (ids[1:cut], ids[cut + 1 : -1])]
    assert entries == [["▁user"], ["user"]]
    spaced = infill_ids(tokenizer, found, "user", " user")
    assert [tokenizer._entry(i) for i in spaced[cut + 1 : -1]] == ["▁user"]


def test_what_stands_at_the_head_stands_there_once(tmp_path: Path) -> None:
    library = bytes_and_controls("<|bos|>")
    library.add_special_tokens(list(ROWS[0]))
    tokenizer = load_tokenizer(save(library, tmp_path))
    found = infill_tokens(tokenizer)
    assert found is not None
    (bos,) = tokenizer.prefix
    expected = [bos, found.prefix_id, 97, found.suffix_id, 98, found.middle_id]
    for before in ("a", [97], (97,), [bos, 97]):
        assert infill_ids(tokenizer, found, before, "b") == expected
    assert infill_ids(tokenizer, found, "", "b")[:2] == [bos, found.prefix_id]


def test_what_ends_a_reply(tmp_path: Path) -> None:
    ends = ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>"]
    tokenizer = with_tokens(tmp_path, byte_level, [*ROWS[0], *ends, "<|other|>"])
    found = infill_tokens(tokenizer)
    assert found is not None
    assert found.end_ids == {tokenizer.token_id(text) for text in ends}


def gguf(**values: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def test_a_file_may_name_them(tmp_path: Path) -> None:
    tokenizer = with_tokens(tmp_path, byte_level, ROWS[0])
    spelled = infill_tokens(tokenizer)
    assert spelled is not None
    assert infill_tokens_of_gguf(tokenizer, {}, "f") == spelled
    new = gguf(fim_pre_token_id=1, fim_suf_token_id=2, fim_mid_token_id=3, fim_pad_token_id=4)
    assert infill_tokens_of_gguf(tokenizer, new, "f") == InfillTokens(1, 2, 3, frozenset({4}))
    old = gguf(prefix_token_id=5, suffix_token_id=6, middle_token_id=7, eot_token_id=8)
    assert infill_tokens_of_gguf(tokenizer, old, "f") == InfillTokens(5, 6, 7, frozenset({8}))
    mixed = infill_tokens_of_gguf(tokenizer, gguf(fim_pre_token_id=1, prefix_token_id=5), "f")
    assert mixed == InfillTokens(1, spelled.suffix_id, spelled.middle_id)


def test_a_file_that_names_too_few_has_none(tmp_path: Path) -> None:
    tokenizer = with_tokens(tmp_path, byte_level, [])
    assert infill_tokens_of_gguf(tokenizer, gguf(fim_pre_token_id=1), "f") is None
    same = gguf(fim_pre_token_id=1, fim_suf_token_id=1, fim_mid_token_id=1)
    assert infill_tokens_of_gguf(tokenizer, same, "f") is None


@pytest.mark.parametrize("value", [-1, 10**6, 1.0, "1", True, [1]])
def test_an_id_that_is_none_is_refused(tmp_path: Path, value: Any) -> None:
    tokenizer = with_tokens(tmp_path, byte_level, [])
    with pytest.raises(RefusedError, match=r"^f: tokenizer\.ggml\.fim_suf_token_id is "):
        infill_tokens_of_gguf(tokenizer, gguf(fim_suf_token_id=value), "f")
