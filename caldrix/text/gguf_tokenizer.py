"""A tokenizer from GGUF metadata: the same one that the model's tokenizer.json would give.

Owns the tokenizer.ggml keys, the pre-tokenizer types and the checks on every list. Must not know
GGUF files (it gets their metadata) nor the tokenizers library.

Three kinds: "gpt2" is byte-level BPE, "llama" SentencePiece BPE (merges follow from the scores),
"t5" Unigram.
"""

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from operator import contains

from caldrix import log
from caldrix.errors import RefusedError, printable
from caldrix.text import charsmap, tokenizer_limits
from caldrix.text.tokenizer import AddedToken, Tokenizer, TokenizerParts, build_tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPACE = "\u2581"

Step = dict[str, object]

# Sum of the squared lengths of the tokens that are cut in two at every place, in characters: real
# vocabularies of 256,000 have 2e7; this much takes a second or so.
MAX_SPLITTING = 300_000_000

# Pre-tokenizer patterns. The words of GPT-2: contractions, then letters, digits or other characters
# with a space before them.
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The words of cl100k and its heirs, with digits and the marks that go with letters left open.
_CL100K_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}{marks}]+|{digits}"
    r"| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class _PreType:
    """How a byte-level vocabulary cuts a text into words."""

    patterns: tuple[str, ...]
    ignore_merges: bool = (
        False  # a word that is in the vocabulary is one token, whatever the merges say
    )
    adds_bos: bool = False
    nfc: bool = False  # GGUF has no flag for it; the models' tokenizer.json files normalise


_LLAMA3 = _PreType((_CL100K_WORDS.format(marks="", digits=r"\p{N}{1,3}"),), True, adds_bos=True)
_QWEN2 = _PreType((_CL100K_WORDS.format(marks="", digits=r"\p{N}"),), nfc=True)
_QWEN35 = _PreType((_CL100K_WORDS.format(marks=r"\p{M}", digits=r"\p{N}"),), nfc=True)
_SMOLLM = _PreType((r"\p{N}", _GPT2_WORDS))
_GPT2 = _PreType((_GPT2_WORDS,))

PRE_TYPES: dict[str, _PreType] = {
    "default": _PreType(_DEFAULT),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": _PreType(_LLAMA3.patterns),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "qwen35": _QWEN35,
}


class _Metadata:
    """The tokenizer.ggml keys, each checked when it is read."""

    def __init__(
        self, values: Mapping[str, object], where: str, status: Callable[[str], None]
    ) -> None:
        self._values = values
        self.where = where
        self.status = status
        self.tokens = self._tokens()
        self.ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(self.ids) != len(self.tokens):
            raise self._given_twice()
        self.types = self._numbers("token_type")
        self.scores = self._numbers("scores")

    def get(self, key: str) -> object:
        return self._values.get("tokenizer.ggml." + key)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(key, f"is {printable(value)}; true or false is needed")
        return value

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.refusal(key, f"is {printable(value)}; a string is needed")
        return value

    def token_id(self, key: str, default: int | None = None) -> int | None:
        value = self.get(key)
        if value is None:
            return default if default is not None and default < len(self.tokens) else None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            raise self.refusal(
                key, f"is {printable(value)}; the ids are 0 to {len(self.tokens) - 1}"
            )
        return value

    def strings(self, key: str) -> list[str]:
        values = self.get(key)
        if not isinstance(values, list):
            raise self.refusal(key, "is missing or no list of strings")
        if values and set(map(type, values)) != {str}:
            raise self.refusal(key, "is no list of strings")
        return values

    def refusal(self, key: str, reason: str) -> RefusedError:
        return RefusedError(f"{self.where}: tokenizer.ggml.{key} {reason}")

    def _numbers(self, key: str) -> Sequence[float] | None:
        values = self.get(key)
        if values is None:
            return None
        kinds = set(map(type, values)) if isinstance(values, list) else {str}
        if not isinstance(values, list) or not kinds <= {int, float}:
            raise self.refusal(key, "is no list of numbers")
        if float in kinds and not all(map(math.isfinite, values)):
            bad = next(value for value in values if not math.isfinite(value))
            raise self.refusal(key, f"holds {bad}; a finite number is needed")
        if len(values) != len(self.tokens):
            raise self.refusal(key, f"has {len(values)} entries for {len(self.tokens)} tokens")
        return values

    def _tokens(self) -> list[str]:
        tokens = self.strings("tokens")
        if not tokens:
            raise self.refusal("tokens", "is empty")
        if "" in tokens:
            tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
        return tokens

    def _given_twice(self) -> RefusedError:
        """`ids` has the last place of each token."""
        i, token = next((i, t) for i, t in enumerate(self.tokens) if self.ids[t] != i)
        second = self.tokens.index(token, i + 1)
        return self.refusal("tokens", f"has {printable(token)} twice, as {i} and {second}")

    @cached_property
    def _odd_types(self) -> list[tuple[int, float]]:
        """(id, type) of the tokens that are not of the normal type, which most are."""
        return [(i, kind) for i, kind in enumerate(self.types or ()) if kind != _NORMAL]

    def of_types(self, *types: int) -> list[int]:
        """The ids of the tokens of these types, which are not the normal one."""
        return [i for i, kind in self._odd_types if kind in types]

    def added(self) -> list[AddedToken]:
        """Control tokens and those that are matched as they stand."""
        special = {*self.of_types(_CONTROL, _UNKNOWN)}
        ids = sorted(special.union(self.of_types(_USER_DEFINED)))
        return [AddedToken(self.tokens[i], i in special) for i in ids]

    def around(
        self, bos_id: int | None, eos_id: int | None, adds_bos: bool, adds_eos: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids put before and after a text; the defaults are `adds_bos` and `adds_eos`."""
        sides: list[tuple[int, ...]] = []
        for key, token_id, default in (("bos", bos_id, adds_bos), ("eos", eos_id, adds_eos)):
            adds = self.flag(f"add_{key}_token", default)
            if adds and token_id is None and self.get(f"add_{key}_token") is not None:
                raise self.refusal(f"add_{key}_token", f"is true and there is no {key}_token_id")
            sides.append((token_id,) if adds and token_id is not None else ())
        return sides[0], sides[1]


def tokenizer_from_gguf(
    metadata: Mapping[str, object],
    where: str = "gguf",
    status: Callable[[str], None] = log.status,
) -> Tokenizer:
    """The tokenizer that the metadata of a GGUF file describe; `where` starts every refusal, and
    `status` is told what had to be guessed."""
    data = _Metadata(metadata, where, status)
    kind = data.text("model")
    if kind == "gpt2":
        return build_tokenizer(_byte_level(data))
    if kind == "llama":
        return build_tokenizer(_sentencepiece(data))
    if kind in ("t5", "unigram"):
        return build_tokenizer(_unigram(data))
    found = "is missing" if kind is None else f"is {printable(kind)}"
    raise data.refusal("model", f"{found}; 'gpt2', 'llama' and 't5' are supported")


def _byte_level(data: _Metadata) -> TokenizerParts:
    name = data.text("pre")
    if name is None:
        data.status(f"{data.where}: no tokenizer.ggml.pre; words are cut as for 'default'")
    pre = PRE_TYPES.get(name or "default")
    if pre is None:
        raise data.refusal("pre", f"is {printable(name)}; supported are {', '.join(PRE_TYPES)}")
    bos_id, eos_id = data.token_id("bos_token_id"), data.token_id("eos_token_id")
    prefix, suffix = data.around(bos_id, eos_id, pre.adds_bos, False)
    byte_level: Step = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return TokenizerParts(
        data.where,
        data.tokens,
        data.ids,
        data.added(),
        merges=_merges(data),
        ignore_merges=pre.ignore_merges,
        normalizer={"type": "NFC"} if pre.nfc else None,
        pre_tokenizer=_sequence("pretokenizers", [*map(_split, pre.patterns), byte_level]),
        decoder=byte_level,
        bos_id=bos_id,
        eos_id=eos_id,
        prefix=prefix,
        suffix=suffix,
    )


def _merges(data: _Metadata) -> list[tuple[str, str]]:
    merges = data.strings("merges")
    if not merges:
        return []
    halves = " ".join(merges).split(" ")
    # As many spaces as merges and one at least in each: one in each.
    if len(halves) != 2 * len(merges) or not all(map(contains, merges, repeat(" "))):
        bad = next((m for m in merges if m.count(" ") != 1), "")
        raise data.refusal(
            "merges", f"holds {printable(bad)}; two tokens with a space between are needed"
        )
    each = iter(halves)
    return list(zip(each, each, strict=True))


def _sentencepiece(data: _Metadata) -> TokenizerParts:
    if data.scores is None:
        raise data.refusal("scores", "is missing; a 'llama' vocabulary needs them")
    bos_id, eos_id = data.token_id("bos_token_id", 1), data.token_id("eos_token_id", 2)
    prefix, suffix = data.around(bos_id, eos_id, True, False)
    adds_space = data.flag("add_space_prefix", True)
    spaces: list[Step] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    decoder: list[Step] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if adds_space:
        spaces.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoder.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return TokenizerParts(
        data.where,
        data.tokens,
        data.ids,
        data.added(),
        merges=_merges_of_scores(data),
        unk_id=_unknown_id(data),
        byte_fallback=_has_byte_tokens(data),
        normalizer=_sequence("normalizers", spaces),
        decoder=_sequence("decoders", decoder),
        bos_id=bos_id,
        eos_id=eos_id,
        prefix=prefix,
        suffix=suffix,
    )


def _merges_of_scores(data: _Metadata) -> list[tuple[str, str]]:
    """Every pair of entries that joins to an entry, the highest score first: SentencePiece's order
    of merging. Among equals the longer left half goes first, as where transformers converts it.

    Control, unused and byte tokens are no part of it: text never merges into one.
    """
    assert data.scores is not None
    left_out = set(data.of_types(_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE))
    ids = {token: i for i, token in enumerate(data.tokens) if i not in left_out}
    if sum(len(token) ** 2 for token in ids) > MAX_SPLITTING:
        raise data.refusal("tokens", "are too long: their parts cannot be searched for merges")
    most = tokenizer_limits.max_merges(len(data.tokens))
    ranked: list[tuple[float, int, int, int, int, int]] = []
    for token, i in ids.items():
        if len(ranked) > most:
            raise data.refusal("tokens", f"can be joined in more than {most} ways")
        for cut in range(1, len(token)):
            left = ids.get(token[:cut])
            if left is not None and (right := ids.get(token[cut:])) is not None:
                ranked.append((-data.scores[i], -cut, cut - len(token), i, left, right))
    ranked.sort()
    return [(data.tokens[left], data.tokens[right]) for *_, left, right in ranked]


def _unigram(data: _Metadata) -> TokenizerParts:
    if data.scores is None:
        raise data.refusal("scores", "is missing; a 't5' vocabulary needs them")
    bos_id, eos_id = data.token_id("bos_token_id"), data.token_id("eos_token_id", 1)
    prefix, suffix = data.around(bos_id, eos_id, False, True)
    scheme = "always" if data.flag("add_space_prefix", True) else "never"
    metaspace: Step = {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": scheme,
        "split": True,
    }
    normalizers: list[Step] = []
    if (table := data.get("precompiled_charsmap")) is not None:
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": _charsmap(data, table)})
    if data.flag("remove_extra_whitespaces", False):
        normalizers.append({"type": "Strip", "strip_left": True, "strip_right": True})
        normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return TokenizerParts(
        data.where,
        data.tokens,
        data.ids,
        data.added(),
        scores=[float(score) for score in data.scores],
        unk_id=_unknown_id(data),
        byte_fallback=_has_byte_tokens(data),
        normalizer=_sequence("normalizers", normalizers),
        pre_tokenizer=metaspace,
        decoder=metaspace,
        bos_id=bos_id,
        eos_id=eos_id,
        prefix=prefix,
        suffix=suffix,
    )


def _charsmap(data: _Metadata, values: object) -> str:
    """SentencePiece's normalisation table, in base64 as tokenizer.json has it."""
    if not isinstance(values, list) or not set(map(type, values)) <= {int}:
        raise data.refusal("precompiled_charsmap", "is no list of bytes")
    if any(not -128 <= value < 256 for value in values):
        raise data.refusal("precompiled_charsmap", "is no list of bytes")
    table = bytes(value & 0xFF for value in values)
    if charsmap.longest_replacement(table) is None:
        raise data.refusal("precompiled_charsmap", "is damaged")
    return base64.b64encode(table).decode()


def _unknown_id(data: _Metadata) -> int | None:
    unknown = data.token_id("unknown_token_id")
    return unknown if unknown is not None else next(iter(data.of_types(_UNKNOWN)), None)


def _has_byte_tokens(data: _Metadata) -> bool:
    return (
        sum(bool(re.fullmatch("<0x[0-9A-F]{2}>", data.tokens[i])) for i in data.of_types(_BYTE))
        == 256
    )


def _split(pattern: str) -> Step:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(key: str, steps: Sequence[Step]) -> Step:
    return {"type": "Sequence", key: list(steps)}
