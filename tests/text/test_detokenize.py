"""Pushed piece by piece or decoded at once, a text is the same, and the library's."""

from collections.abc import Callable, Sequence

import pytest
import small_tokenizers as small
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from caldrix.errors import RefusedError
from caldrix.text.detokenize import Detokenizer, StopStrings, decoder_rules
from caldrix.text.tokenizer import Tokenizer, load_tokenizer

TEXT = st.text(st.sampled_from("user b<|a>tool/m é日\u0301🫠\n\t0"), max_size=30)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Tokenizer, Library]]:
    made: dict[str, tuple[Tokenizer, Library]] = {}

    def get(kind: str) -> tuple[Tokenizer, Library]:
        if kind not in made:
            library = small.KINDS[kind]()
            made[kind] = load_tokenizer(small.save(library, tmp_path_factory.mktemp(kind))), library
        return made[kind]

    return get


def pushed(tokenizer: Tokenizer, ids: Sequence[int], skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


@pytest.mark.parametrize("kind", ["byte-level", "metaspace", "unigram"])
@given(data=st.data(), skip=st.booleans())
def test_any_ids_give_what_the_library_decodes(both, kind: str, data, skip: bool) -> None:
    tokenizer, library = both(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    text = library.decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode(ids, skip) == text
    assert "".join(pushed(tokenizer, ids, skip)) == text


@given(data=st.data(), skip=st.booleans())
def test_byte_tokens_give_what_the_library_decodes(both, data, skip: bool) -> None:
    tokenizer, library = both("byte-fallback")
    words = [i for i in range(256, tokenizer.vocab_size)]
    characters = st.characters(exclude_categories=["Cs"]).map(lambda c: list(c.encode()))
    runs = st.lists(st.one_of(characters, st.sampled_from(words).map(lambda i: [i])), max_size=15)
    ids = [i for run in data.draw(runs) for i in run]
    text = library.decode(ids, skip_special_tokens=skip)
    assert "".join(pushed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip) == text


@given(data=st.data())
def test_byte_tokens_that_are_no_characters_become_one_mark_each(both, data) -> None:
    """Where a run of byte tokens holds no valid character, that is the library's answer too."""
    tokenizer, library = both("byte-fallback")
    bad = st.integers(0x80, 0xBF)  # continuation bytes with nothing to continue
    ids = data.draw(
        st.lists(st.one_of(bad, st.integers(256, tokenizer.vocab_size - 1)), max_size=20)
    )
    assert "".join(pushed(tokenizer, ids)) == library.decode(ids)


def test_valid_characters_beside_a_bad_byte_are_kept(both) -> None:
    tokenizer, _ = both("byte-fallback")
    assert pushed(tokenizer, [*"龜".encode(), 0xFF, *"é".encode()[:1]]) == [
        *("", "", "龜", "\ufffd", ""),
        "\ufffd",
    ]


@pytest.mark.parametrize("kind", small.KINDS)
@given(text=TEXT)
def test_a_push_never_holds_a_part_of_a_character(both, kind: str, text: str) -> None:
    tokenizer, library = both(kind)
    ids = library.encode(text, add_special_tokens=False).ids
    unknown = "\ufffd" in tokenizer.decode(ids, False)
    parts = pushed(tokenizer, ids, False)
    assert not any("\ufffd" in part for part in parts) or unknown
    assert parts[-1] == ""


def test_bytes_cut_by_a_control_token_are_marked_as_in_the_whole(both) -> None:
    tokenizer, library = both("byte-level")
    first_byte = library.encode("🫠").ids[0]
    control = library.token_to_id("<|a|>")
    for skip in (True, False):
        ids = [first_byte, control, *library.encode("b").ids]
        assert "".join(pushed(tokenizer, ids, skip)) == library.decode(
            ids, skip_special_tokens=skip
        )


def test_token_bytes_join_to_the_text_of_a_byte_level_vocabulary(both) -> None:
    tokenizer, library = both("byte-level")
    ids = library.encode("user 日本 🫠<|a|>").ids
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "user 日本 🫠<|a|>"
    assert tokenizer.token_bytes(tokenizer.vocab_size + 1000) == b""
    assert tokenizer.token_bytes(-1) == b""


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},
        {
            "type": "Sequence",
            "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}],
        },
        {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""},
    ],
)
def test_a_decoder_that_cannot_be_followed_is_refused_by_name(spec: object) -> None:
    with pytest.raises(RefusedError, match=r"tokenizer\.json: decoder .*not supported"):
        decoder_rules(spec, "tokenizer.json")


# --- stop strings


def shown(stops: Sequence[str], chunks: Sequence[str]) -> tuple[str, bool, list[str]]:
    finder = StopStrings(stops)
    parts, stopped = [], False
    for chunk in chunks:
        text, stopped = finder.push(chunk)
        parts.append(text)
        if stopped:
            break
    if not stopped:
        parts.append(finder.finish())
    return "".join(parts), stopped, parts


@pytest.mark.parametrize(
    ("stops", "text", "stopped"),
    [
        (["qui"], "The ", True),
        (["ck?"], "The quick!", False),
        (["k!x"], "The quick!", False),
        (["quick", "ick"], "The ", True),
        (["ick", "quick"], "The ", True),
        (["é"], "The quick!", False),
        ([""], "The quick!", False),
        ([], "The quick!", False),
        (["The quick!"], "", True),
    ],
)
def test_stop_strings_of_a_reply_that_comes_a_character_at_a_time(
    stops: list[str], text: str, stopped: bool
) -> None:
    assert shown(stops, "The quick!")[:2] == (text, stopped)
    assert shown(stops, ["The quick!"])[:2] == (text, stopped)


def first_stop(stops: Sequence[str], text: str) -> tuple[str, bool]:
    """The definition: the stop string complete first, of those complete together the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@settings(max_examples=300)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    chunks=st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_the_cut_does_not_depend_on_the_pushes(stops: list[str], chunks: list[str]) -> None:
    text, stopped, _ = shown(stops, chunks)
    assert (text, stopped) == first_stop(stops, "".join(chunks))


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    chunks=st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_only_what_may_begin_a_stop_string_is_held(stops: list[str], chunks: list[str]) -> None:
    finder, whole, given_out = StopStrings(stops), "", ""
    for chunk in chunks:
        text, stopped = finder.push(chunk)
        whole, given_out = whole + chunk, given_out + text
        if stopped:
            assert finder.push("more") == ("", True)
            assert finder.finish() == ""
            return
        held = whole[len(given_out) :]
        starts = [s for stop in stops for k in range(len(stop)) if whole.endswith(s := stop[:k])]
        assert held == max(starts, key=len)


def test_a_fresh_search_begins_anew() -> None:
    search = StopStrings(["ab", "b!"])
    assert search.push("xa") == ("x", False)
    other = search.fresh()
    assert other.push("b") == ("", False)  # the a before it was another text's
    assert search.push("b") == ("", True)
    assert other.push("!") == ("", True)
    assert search.fresh().push("b.") == ("b.", False)
