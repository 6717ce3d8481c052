"""Text to token ids and back, through the tokenizers library: the only module that imports it.

Owns the rule that control tokens never come from text that a person typed (`encode_text`,
`encode_segments`), the one BOS at the head of a prompt, and ids as the model's file gives them.
Must not know templates, GGUF or the engine.

A `Tokenizer` is shared between threads: after it is built, only caches change.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caldrix.errors import RefusedError, printable
from caldrix.log import escape
from caldrix.text import detokenize, json_file, tokenizer_limits
from caldrix.text.plain_text import PlainEncoder

if TYPE_CHECKING:
    import tokenizers

_SURROGATE = re.compile("[\ud800-\udfff]")
# Added tokens that steer a model although their entry does not call them special.
_BRACKETED = re.compile(r"<\S+>|\[\S+\]")
_CONTROL = re.compile("<[|\uff5c].*[|\uff5c]>|</?(think|tool_call|tool_response)>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AddedToken:
    """An entry matched in the text before the model sees it."""

    content: str
    special: bool


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A tokenizer as plain data: the steps as tokenizer.json has them, the vocabulary as lists."""

    where: str
    tokens: Sequence[str]
    ids: dict[str, int]  # of every token, its place in `tokens`
    added: Sequence[AddedToken] = ()
    merges: Sequence[tuple[str, str]] = ()
    scores: Sequence[float] | None = None  # log-probabilities of a Unigram model; None for BPE
    unk_id: int | None = None
    byte_fallback: bool = False
    ignore_merges: bool = False
    normalizer: Mapping[str, object] | None = None
    pre_tokenizer: Mapping[str, object] | None = None
    decoder: Mapping[str, object] = field(default_factory=dict)
    bos_id: int | None = None
    eos_id: int | None = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Settings:
    """What the library does not keep."""

    where: str
    bos_id: int | None
    eos_id: int | None
    prefix: tuple[int, ...]  # ids put before and after a text
    suffix: tuple[int, ...]
    file_ids: Mapping[int, int]  # the library's id to the file's, where they differ
    vocab_size: int | None = None


class Tokenizer:
    """A model's vocabulary."""

    def __init__(self, library: "tokenizers.Tokenizer", settings: _Settings) -> None:
        self._library = library
        self._model = library.model
        self._settings = settings
        file_ids = settings.file_ids
        self._added = {
            file_ids.get(i, i): AddedToken(token.content, token.special)
            for i, token in library.get_added_tokens_decoder().items()
        }
        self._special = frozenset(i for i, token in self._added.items() if token.special)
        self.rules = detokenize.decoder_rules(_state(library.decoder), settings.where)
        self.bos_id = settings.bos_id
        self.eos_id = settings.eos_id
        # caches
        self._pieces: dict[int, str | bytes] = {}
        self._encoders: dict[frozenset[int], PlainEncoder] = {}
        self._controls: dict[str, dict[str, int]] = {}

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        if self._settings.vocab_size is not None:
            return self._settings.vocab_size
        ids = self._library.get_vocab(True).values()
        return max((self._settings.file_ids.get(i, i) for i in ids), default=-1) + 1

    @property
    def n_tokens(self) -> int:
        """How many tokens there are; at most `vocab_size`, and cheap to know."""
        count = self._settings.vocab_size
        return int(self._library.get_vocab_size()) if count is None else count

    @property
    def prefix(self) -> tuple[int, ...]:
        """What is put before a text."""
        return self._settings.prefix

    @property
    def adds_bos(self) -> bool:
        """Whether a plain prompt gets a BOS."""
        return self.bos_id is not None and self._settings.prefix[:1] == (self.bos_id,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of raw text, as the reference library gives them: control tokens written in the
        text are parsed.

        What the tokenizer puts before a text (BOS) is not put there again where the text begins
        with it.
        """
        with _refusals(self._settings.where):
            # In this form the library lets other threads run: a text may take seconds.
            found = self._library.encode_batch_fast([_clean(text)], add_special_tokens=False)
            ids = found[0].ids
        if self._settings.file_ids:
            ids = [self._settings.file_ids.get(i, i) for i in ids]
        if not add_special_tokens:
            return ids
        prefix, suffix = list(self._settings.prefix), list(self._settings.suffix)
        return (ids if ids[: len(prefix)] == prefix else prefix + ids) + suffix

    def encode_text(self, text: str) -> list[int]:
        """The ids of text that a person typed: no control token, nothing put before or after."""
        return self.encode_segments([text])

    def encode_segments(
        self, segments: Iterable[str | int], control_ids: Iterable[int] | None = None
    ) -> list[int]:
        """The ids of one text given as typed text (str) and control tokens (int), in which no
        `control_ids` come from text.

        Encoded as a whole, so that a token's neighbours (stripped spaces, a space before the first
        word) are as in the reference. `control_ids` are those of `control_tokens()` unless given.
        """
        ids = frozenset(self.control_tokens().values() if control_ids is None else control_ids)
        if (encoder := self._encoders.get(ids)) is None:
            encoder = self._encoders[ids] = self._plain_encoder(ids)
        with _refusals(self._settings.where):
            return encoder.encode([s if isinstance(s, int) else _clean(s) for s in segments])

    def control_tokens(self, template: str = "") -> Mapping[str, int]:
        """Added tokens that steer the model: the special ones, those of the usual control form
        (`<|…|>`, `<think>`, tool calls), and those that a template names, since they are its
        structure."""
        if (controls := self._controls.get(template)) is None:
            controls = self._controls[template] = {
                token.content: i
                for i, token in self._added.items()
                if token.special
                or _CONTROL.fullmatch(token.content)
                or (_BRACKETED.fullmatch(token.content) and token.content in template)
            }
        return controls

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; an id that the vocabulary does not have is nothing."""
        return detokenize.decode(self, ids, skip_special_tokens)

    def piece(self, token_id: int, first: bool = False) -> str | bytes:
        """What a token adds to a text: bytes where it may be part of a character."""
        if first:
            return self.rules.first_piece(self._entry(token_id), token_id in self._added)
        if (piece := self._pieces.get(token_id)) is None:
            piece = self.rules.piece(self._entry(token_id), token_id in self._added)
            self._pieces[token_id] = piece
        return piece

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token's text."""
        piece = self.piece(token_id)
        return piece if isinstance(piece, bytes) else piece.encode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether a decode that skips special tokens leaves this one out."""
        return token_id in self._special

    def token_id(self, text: str) -> int | None:
        """The id of the vocabulary entry `text`."""
        token_id = self._library.token_to_id(_clean(text))
        return None if token_id is None else self._settings.file_ids.get(token_id, token_id)

    def _entry(self, token_id: int) -> str:
        if (token := self._added.get(token_id)) is not None:
            return token.content
        if not 0 <= token_id < 1 << 32 or token_id in self._settings.file_ids:
            return ""
        return self._model.id_to_token(token_id) or ""

    def _plain_encoder(self, control_ids: frozenset[int]) -> PlainEncoder:
        from tokenizers import AddedToken as LibraryToken
        from tokenizers import Tokenizer as Library

        def empty() -> Library:  # the model is shared, not copied
            library = Library(self._model)
            if self._library.normalizer is not None:
                library.normalizer = self._library.normalizer
            if self._library.pre_tokenizer is not None:
                library.pre_tokenizer = self._library.pre_tokenizer
            return library

        added = {
            self._settings.file_ids.get(i, i): token
            for i, token in sorted(self._library.get_added_tokens_decoder().items())
        }
        with _refusals(self._settings.where):
            return PlainEncoder(empty(), LibraryToken, added, control_ids)


def _clean(text: str) -> str:
    """`text` without the lone surrogates that JSON and arguments can carry but UTF-8 cannot."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _state(part: Any) -> object:
    """A step of the library's tokenizer as tokenizer.json spells it."""
    return None if part is None else json.loads(part.__getstate__())


@contextmanager
def _refusals(where: str) -> Iterator[None]:
    """Turns what the library raises (a plain Exception, or its panic, which is no Exception) into a
    refusal."""
    try:
        yield
    except RefusedError as error:
        raise RefusedError(f"{where}: {error}") from None
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            reason = escape(" ".join(str(error).split()))
            raise RefusedError(f"{where}: not usable as a tokenizer: {reason[:200]}") from None
        raise


def _quiet_library() -> None:
    # One text at a time is encoded, so the library's own threads are of no use; unset, it warns
    # after a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def build_tokenizer(parts: TokenizerParts) -> Tokenizer:
    """The tokenizer that `parts` describe. Ids are places in `parts.tokens`."""
    _quiet_library()
    from tokenizers import AddedToken as LibraryToken
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    steps: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": None,
        "decoder": parts.decoder,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    with _refusals(parts.where):
        tokenizer_limits.check_steps(steps)
        library = Library.from_str(json.dumps(steps))
        if parts.scores is None:
            library.model = models.BPE(
                vocab=parts.ids,
                merges=list(parts.merges),
                unk_token=None if parts.unk_id is None else parts.tokens[parts.unk_id],
                fuse_unk=parts.unk_id is not None,
                byte_fallback=parts.byte_fallback,
                ignore_merges=parts.ignore_merges,
            )
        else:
            library.model = models.Unigram(
                list(zip(parts.tokens, parts.scores, strict=True)),
                parts.unk_id,
                parts.byte_fallback,
            )
        library.add_tokens(
            [LibraryToken(t.content, special=t.special, normalized=False) for t in parts.added]
        )
    settings = _Settings(
        parts.where,
        parts.bos_id,
        parts.eos_id,
        parts.prefix,
        parts.suffix,
        file_ids={},
        vocab_size=len(parts.tokens),
    )
    return Tokenizer(library, settings)


def load_tokenizer(directory: Path, n_tokens: int | None = None) -> Tokenizer:
    """The tokenizer of a model directory: tokenizer.json, with what tokenizer_config.json says
    about BOS and EOS. `n_tokens` is how many tokens the model has, which bounds what is read."""
    path = directory / "tokenizer.json"
    if not os.path.isfile(path):
        raise RefusedError(f"{directory}: no tokenizer.json (the one tokenizer file that is read)")
    _quiet_library()
    from tokenizers import Tokenizer as Library

    data = json_file.read_bytes(path, tokenizer_limits.MAX_BYTES)
    with _refusals(str(path)):
        tokenizer_limits.check_size(data, n_tokens)
        parts = tokenizer_limits.small_parts(data)
        tokenizer_limits.check_steps(parts)
        library = Library.from_buffer(data)
        library.no_truncation()
        library.no_padding()
        if getattr(library.model, "dropout", None):
            library.model.dropout = None  # for training: it leaves out merges at random
        tokenizer_limits.check_word(getattr(library.model, "max_input_chars_per_word", None))
    file_ids = _file_ids(library, parts.get("added_tokens"), path)
    config = json_file.read_object(directory / "tokenizer_config.json")
    return Tokenizer(library, _settings(library, config, file_ids, path))


def _settings(
    library: "tokenizers.Tokenizer",
    config: Mapping[str, object],
    file_ids: Mapping[int, int],
    path: Path,
) -> _Settings:
    """BOS and EOS: add_bos_token and add_eos_token decide where they are given, else the file's
    post-processor."""
    ids: dict[str, int | None] = {}
    for key in ("bos_token", "eos_token"):
        content = json_file.token_content(
            config.get(key), f"{path.parent}/tokenizer_config.json: {key}"
        )
        found = None if content is None else library.token_to_id(content)
        ids[key] = None if found is None else file_ids.get(found, found)
    bos_id, eos_id = ids["bos_token"], ids["eos_token"]
    with _refusals(str(path)):
        prefix, suffix = _around(library, file_ids)
    if bos_id is not None and isinstance(adds := config.get("add_bos_token"), bool):
        prefix = ((bos_id,) if adds else ()) + (prefix[1:] if prefix[:1] == (bos_id,) else prefix)
    if eos_id is not None and isinstance(adds := config.get("add_eos_token"), bool):
        suffix = (suffix[:-1] if suffix[-1:] == (eos_id,) else suffix) + ((eos_id,) if adds else ())
    return _Settings(str(path), bos_id, eos_id, prefix, suffix, file_ids)


def _around(
    library: "tokenizers.Tokenizer", file_ids: Mapping[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the post-processor puts before and after a text."""
    plain = library.encode("a", add_special_tokens=False).ids
    whole = library.encode("a").ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            named = [file_ids.get(i, i) for i in whole]
            return tuple(named[:start]), tuple(named[start + len(plain) :])
    return (), ()


def _file_ids(library: "tokenizers.Tokenizer", entries: object, path: Path) -> dict[int, int]:
    """Library id to file id of the added tokens that the library renumbered.

    It gives an added token that is not in the model's vocabulary the next free id, whatever the
    file says.
    """
    ours = {token.content: i for i, token in library.get_added_tokens_decoder().items()}
    renumbered = {}
    for entry in entries if isinstance(entries, list) else []:
        match entry:
            case {"id": int(i), "content": str(content)} if ours.get(content, i) != i:
                renumbered[ours[content]] = i
    for content, i in ours.items():
        file_id = renumbered.get(i, i)
        if any(library.model.id_to_token(k) not in (None, content) for k in (i, file_id)):
            raise RefusedError(
                f"{path}: added_tokens: {printable(content)} has the id of another token, {file_id}"
            )
    return renumbered
