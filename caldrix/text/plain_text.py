"""Encoding of typed text between control tokens, so that no control token comes out of the text.

Owns the trick: a library tokenizer over the same model whose control tokens are known by other
names, drawn at random when it is built. A control token is put into the text under that name; what
a person typed cannot be one. Must not know templates or files. The library's classes are handed in.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from caldrix.errors import RefusedError, printable

Library = Any  # tokenizers.Tokenizer and tokenizers.AddedToken, which tokenizer.py alone imports
LibraryToken = Any

# Characters that a vocabulary is not likely to have, and byte fallback aside, become its unknown
# token.
_UNKNOWN = "\U0010fff0\U000f1234\u0378\U00013000"


_MAX_GAP = 1 << 16


def _random_name() -> str:
    """16 characters of the last private-use plane, which no normalizer changes: 128 random bits."""
    return "".join(chr(0x100000 + b) for b in secrets.token_bytes(16))


class PlainEncoder:
    """Encodes text and control tokens in one piece. `library` holds the model and no added tokens
    yet."""

    def __init__(
        self,
        library: Library,
        token_class: type[LibraryToken],
        added: Mapping[int, LibraryToken],
        control_ids: frozenset[int],
    ) -> None:
        self._library = library
        unknown = library.encode(_UNKNOWN, add_special_tokens=False).ids
        self._names = {i: _random_name() for i in control_ids if i in added}
        self._break = _random_name()
        self._skip_used_ids(token_class, len(added) + 1)
        library.add_tokens([self._renamed(token_class, i, token) for i, token in added.items()])
        library.add_special_tokens([token_class(self._break, normalized=False)])
        self._real = self._real_ids(added)
        self._break_id = library.token_to_id(self._break)
        # A model whose own vocabulary holds the control tokens may spell one out of plain text.
        in_model = {i for i in control_ids if library.model.id_to_token(i) is not None}
        self._forbidden = in_model - set(unknown)

    def _skip_used_ids(self, token_class: type[LibraryToken], n_new: int) -> None:
        """Moves past the model's highest id: new tokens are numbered from its size, which gaps make
        too low."""
        model, size = self._library.model, self._library.get_vocab_size()
        if any(model.id_to_token(size + k) is not None for k in range(n_new)):
            n_fillers = max(self._library.get_vocab(False).values()) + 1 - size
            if n_fillers > _MAX_GAP:
                raise RefusedError(
                    f"gaps of {n_fillers} ids in the vocabulary; {_MAX_GAP} are read"
                )
            self._library.add_tokens([token_class(_random_name()) for _ in range(n_fillers)])

    def _renamed(
        self, token_class: type[LibraryToken], i: int, token: LibraryToken
    ) -> LibraryToken:
        return token_class(
            self._names.get(i, token.content),
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=token.special,
        )

    def _real_ids(self, added: Mapping[int, LibraryToken]) -> dict[int, int]:
        """This library's ids of the added tokens to the model's."""
        real = {}
        for i, token in added.items():
            library_id = self._library.token_to_id(self._names.get(i, token.content))
            if library_id is not None:
                real[library_id] = i
        return real

    def encode(self, segments: Iterable[str | int]) -> list[int]:
        """The ids of a text given as typed text and control tokens."""
        text = "".join(s if isinstance(s, str) else self._names[s] for s in segments)
        while True:
            # In this form the library lets other threads run: a text may take seconds.
            ids = self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
            if self._forbidden.isdisjoint(ids):
                return [self._real.get(i, i) for i in ids if i != self._break_id]
            offsets = self._library.encode_batch([text], add_special_tokens=False)[0].offsets
            spans = [offsets[k] for k, i in enumerate(ids) if i in self._forbidden]
            text = self._broken(text, spans)

    def _broken(self, text: str, spans: Sequence[tuple[int, int]]) -> str:
        """`text` with a break after the first character of each span, so that the model cannot see
        it as one."""
        parts, done = [], 0
        for start, end in spans:
            if end - start < 2:
                raise RefusedError(
                    f"text holds {printable(text[start:end])}, which this tokenizer can spell "
                    "only as a control token"
                )
            parts += [text[done : start + 1], self._break]
            done = start + 1
        return "".join([*parts, text[done:]])
