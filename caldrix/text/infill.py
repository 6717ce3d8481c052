"""Filling in the middle: the tokens that a vocabulary has for it, and the prompt made of them.

Owns the spellings that model families use, the keys of GGUF metadata, which tokens end such a
reply, and the order (before, after, then the middle). Nothing in the two texts becomes a control
token. Must not know requests, templates or the engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from caldrix.errors import RefusedError, printable
from caldrix.text.tokenizer import Tokenizer

# What stands before the text, before what comes after the gap, and where the middle begins. A
# vocabulary has all three of a row or is taken to have none.
_SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen 2.5 and later, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SmolLM, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    # DeepSeek
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM 4.5
)  # fmt: skip

# A model that has filled the gap says one of these, also where its file names another end token:
# padding, the next file or repository, the end of the text or of a turn.
_ENDS = (
    "<|fim_pad|>", "<fim_pad>", "<fim-pad>",
    "<|fim_repo|>", "<|repo_name|>", "<repo_name>", "<reponame>", "<fim-repo>",
    "<|file_sep|>", "<file_sep>", "<|file_separator|>",
    "<EOT>", "_<EOT>", "\u2581<EOT>", "<|EOT|>", "<|eot_id|>",
    "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip

# The keys of GGUF metadata after `tokenizer.ggml.`, the newer one first.
_KEYS = (
    ("fim_pre_token_id", "prefix_token_id"),
    ("fim_suf_token_id", "suffix_token_id"),
    ("fim_mid_token_id", "middle_token_id"),
)
_END_KEYS = ("fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id", "eot_token_id")

# Stands before a text that goes on behind another, so that no space is put before its first word.
_MARK = "\u263a"


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The ids of one vocabulary. `end_ids` end a reply besides the model's own end tokens."""

    prefix_id: int
    suffix_id: int
    middle_id: int
    end_ids: frozenset[int] = frozenset()

    @property
    def ids(self) -> tuple[int, int, int]:
        return self.prefix_id, self.suffix_id, self.middle_id


def infill_tokens(tokenizer: Tokenizer) -> InfillTokens | None:
    """The tokens of a vocabulary by their spelling; None when it has none."""
    return _infill(tokenizer, _spelled(tokenizer), ())


def infill_tokens_of_gguf(
    tokenizer: Tokenizer, metadata: Mapping[str, object], where: str
) -> InfillTokens | None:
    """The same where a file may name them; a name of its own goes before a spelling."""
    spelled: Sequence[int | None] = _spelled(tokenizer) or (None, None, None)
    found = [
        next((i for i in (_given(metadata, k, tokenizer, where) for k in keys) if i is not None), i)
        for keys, i in zip(_KEYS, spelled, strict=True)
    ]
    ends = [_given(metadata, key, tokenizer, where) for key in _END_KEYS]
    ids = tuple(i for i in found if i is not None)
    return _infill(tokenizer, ids, [i for i in ends if i is not None])


def infill_ids(
    tokenizer: Tokenizer, tokens: InfillTokens, before: str | Sequence[int], after: str
) -> list[int]:
    """The prompt whose continuation belongs between `before` and `after`. What the tokenizer puts
    at the head of a text stands at the head once, also where ids bring it along."""
    controls = frozenset((*tokenizer.control_tokens().values(), *tokens.ids))
    head = list(tokenizer.prefix)
    if isinstance(before, str):
        ids = tokenizer.encode_segments([before], controls)
    else:
        ids = list(before)[len(head) if list(before[: len(head)]) == head else 0 :]
    behind = _ids_behind(tokenizer, after, controls)
    return [*head, tokens.prefix_id, *ids, tokens.suffix_id, *behind, tokens.middle_id]


def _ids_behind(tokenizer: Tokenizer, text: str, controls: frozenset[int]) -> list[int]:
    """The ids of a text that goes on behind another."""
    ids = tokenizer.encode_segments([text], controls)
    if tokenizer.rules.byte_level:  # puts nothing before a text
        return ids
    mark = tokenizer.encode_segments([_MARK], controls)
    marked = tokenizer.encode_segments([_MARK + text], controls)
    return marked[len(mark) :] if marked[: len(mark)] == mark else ids


def _spelled(tokenizer: Tokenizer) -> tuple[int, ...]:
    for row in _SPELLINGS:
        ids = [tokenizer.token_id(text) for text in row]
        if None not in ids:
            return tuple(i for i in ids if i is not None)
    return ()


def _infill(tokenizer: Tokenizer, ids: Sequence[int], ends: Iterable[int]) -> InfillTokens | None:
    if len(ids) != 3 or len(set(ids)) != 3:
        return None
    spelled = (tokenizer.token_id(text) for text in _ENDS)
    end_ids = frozenset((*ends, *(i for i in spelled if i is not None))).difference(ids)
    return InfillTokens(ids[0], ids[1], ids[2], end_ids)


def _given(
    metadata: Mapping[str, object], key: str, tokenizer: Tokenizer, where: str
) -> int | None:
    value = metadata.get("tokenizer.ggml." + key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < tokenizer.vocab_size:
        raise RefusedError(
            f"{where}: tokenizer.ggml.{key} is {printable(value)};"
            f" the ids are 0 to {tokenizer.vocab_size - 1}"
        )
    return value
