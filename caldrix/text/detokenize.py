"""Token ids back to text, a piece at a time, and the search for stop strings in that text.

Owns the rules by which a decoder joins vocabulary entries (byte-level; Metaspace; replaced spaces
with byte tokens) and the state of one reply. A push gives whole characters only; the pushes joined,
with `finish`, are the whole decode. Must not know the tokenizers library, requests or the engine.

Bytes that are no UTF-8 become U+FFFD: by maximal subparts for byte-level vocabularies, one a byte
for byte tokens. Valid characters in a run of byte tokens are kept even where the run holds a bad
byte, as SentencePiece does: only so can a run be shown before its end.
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

from caldrix.errors import RefusedError, printable

_BYTE_TOKEN = re.compile(r"<0x([0-9a-fA-F]{2})>")
_BYTEWISE = "caldrix-bytewise"


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_BYTEWISE, _replace_each_byte)


def _byte_alphabet() -> dict[str, int]:
    """Character to byte in the GPT-2 alphabet: printable Latin-1 stands for itself, the rest
    follows from U+0100."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {**{chr(b): b for b in own}, **{chr(0x100 + i): b for i, b in enumerate(others)}}


BYTE_ALPHABET = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class DecoderRules:
    """How vocabulary entries become text."""

    byte_level: bool = False
    byte_tokens: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    dropped_in_first: str = ""  # a character left out of the first token (Metaspace)
    stripped: str = ""  # a character cut from the start of the text, at most n_stripped times
    n_stripped: int = 0

    def piece(self, entry: str, added: bool = False) -> str | bytes:
        """An entry's text; bytes where it may be a part of a character. An added token's entry is
        its text."""
        if self.byte_level:
            if added or any(c not in BYTE_ALPHABET for c in entry):
                return entry.encode("utf-8", "replace")
            return bytes(BYTE_ALPHABET[c] for c in entry)
        if self.byte_tokens and (match := _BYTE_TOKEN.fullmatch(entry)):
            return bytes((int(match[1], 16),))
        for old, new in self.replacements:
            entry = entry.replace(old, new)
        return entry

    def first_piece(self, entry: str, added: bool = False) -> str | bytes:
        """The same for the first token of a text."""
        if self.dropped_in_first:
            entry = entry.replace(self.dropped_in_first, "")
        return self.piece(entry, added)


def decoder_rules(spec: object, where: str) -> DecoderRules:
    """The rules of a decoder as tokenizer.json spells it; refuses one that it cannot follow, naming
    the part."""
    steps = _steps(spec)
    kinds = [str(step.get("type")) for step in steps]
    if kinds == ["ByteLevel"]:
        return DecoderRules(byte_level=True)
    shape = r"(Replace |Metaspace )*(ByteFallback )?(Fuse )?(Strip )?"
    if not kinds or not re.fullmatch(shape, "".join(kind + " " for kind in kinds)):
        raise RefusedError(
            f"{where}: decoder {printable(', '.join(kinds) or spec)} is not supported; ByteLevel, "
            "Metaspace and Replace, ByteFallback, Fuse, Strip in this order are"
        )
    replacements, dropped, stripped, n_stripped = [], "", "", 0
    for step in steps:
        match step:
            case {"type": "Metaspace", "replacement": str(char)}:
                replacements.append((char, " "))
                dropped = "" if step.get("prepend_scheme") == "never" else char
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "Strip", "content": str(char), "start": int(n), "stop": 0} if (
                "Fuse" in kinds
            ):
                stripped, n_stripped = char, n
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                raise RefusedError(f"{where}: decoder step {printable(step)} is not supported")
    return DecoderRules(
        byte_tokens="ByteFallback" in kinds,
        replacements=tuple(replacements),
        dropped_in_first=dropped,
        stripped=stripped,
        n_stripped=n_stripped,
    )


def _steps(spec: object) -> list[Mapping[str, object]]:
    if not isinstance(spec, Mapping):
        return []
    if spec.get("type") != "Sequence":
        return [spec]
    decoders = spec.get("decoders")
    return (
        [step for part in decoders for step in _steps(part)] if isinstance(decoders, list) else []
    )


class PieceSource(Protocol):
    """What a detokenizer asks of a tokenizer."""

    rules: DecoderRules

    def piece(self, token_id: int, first: bool = False) -> str | bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class Detokenizer:
    """The text of one growing sequence of tokens."""

    def __init__(self, tokenizer: PieceSource, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        # the text so far
        rules = tokenizer.rules
        errors = "replace" if rules.byte_level else _BYTEWISE
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors)
        self._first = bool(rules.dropped_in_first)
        self._n_to_strip = rules.n_stripped

    def push(self, token_id: int) -> str:
        """The characters that this token completes; empty while one is incomplete."""
        if self._skip and self._tokenizer.is_special(token_id):
            return ""
        piece = self._tokenizer.piece(token_id)
        if self._first and piece:  # an id that is no token is not the first token
            piece = self._tokenizer.piece(token_id, first=True)
            self._first = False
        if isinstance(piece, bytes):
            return self._strip(self._bytes.decode(piece))
        return self._strip(self._bytes.decode(b"", True) + piece)

    def finish(self) -> str:
        """What a character cut off at the end leaves behind."""
        return self._strip(self._bytes.decode(b"", True))

    def _strip(self, text: str) -> str:
        while self._n_to_strip and text:
            if text[0] != self._tokenizer.rules.stripped:
                self._n_to_strip = 0
            else:
                text = text[1:]
                self._n_to_strip -= 1
        return text


def decode(tokenizer: PieceSource, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
    """The whole text of `ids`."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens)
    return "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.finish()


class StopStrings:
    """Cuts a text before the first stop string in it, however the text is split over pushes.

    The first is the one that is complete first; of two complete at the same character, the longer.
    A tail that may begin a stop string is held back, and no more than that.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._borders = [_borders(stop) for stop in self._stops]
        self._begin()

    def fresh(self) -> "StopStrings":
        """The same search in another text; what was worked out of the strings is shared."""
        other = copy(self)
        other._begin()
        return other

    def _begin(self) -> None:
        # the text so far
        self._matched = [0] * len(self._stops)  # how much of each stop string the text ends with
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is now safe to show, and whether a stop string is complete."""
        if self._stopped:
            return "", True
        if not self._stops:
            return text, False
        text = self._held + text
        for end in range(len(self._held), len(text)):
            if cut := self._step(text[end]):
                self._stopped, self._held = True, ""
                return text[: end + 1 - cut], True
        n_held = max(self._matched, default=0)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held], False

    def finish(self) -> str:
        """The text held back, when no more comes."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _step(self, char: str) -> int:
        """Reads one character; the length of the longest stop string complete with it, or 0."""
        longest = 0
        for i, stop in enumerate(self._stops):
            n = self._matched[i]
            while n and stop[n] != char:
                n = self._borders[i][n]
            n += stop[n] == char
            if n == len(stop):
                longest = max(longest, n)
                n = self._borders[i][n]
            self._matched[i] = n
        return longest


def _borders(stop: str) -> list[int]:
    """For each n, the length of the longest proper prefix of `stop[:n]` that is its suffix too
    (Knuth, Morris, Pratt)."""
    borders = [0, 0]
    for end in range(1, len(stop)):
        n = borders[end]
        while n and stop[n] != stop[end]:
            n = borders[n]
        borders.append(n + (stop[n] == stop[end]))
    return borders
