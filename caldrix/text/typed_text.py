"""Keeps what people typed apart from what a template writes, through a template's own string work.

Owns the stand-ins: before rendering, the first character of every control token ('<', as a rule) is
replaced in typed strings by a private-use character, so that no control token can be read there,
however the template trims, splits, slices or joins; lengths stay as they were. After rendering, the
control tokens in the text are the template's, and the stand-ins become the typed characters again.
Must not know jinja2 or tokenizers.
"""

import re
from collections.abc import Iterable, Iterator

from caldrix.errors import RefusedError

_PRIVATE = range(0xF0000, 0xFFFFE)  # plane 15; stand-ins are taken from those that nobody used
_PRIVATE_CLASS = re.compile("[\U000f0000-\U000ffffd]")


class TypedText:
    """The stand-ins of one rendering. `inputs` is everything that the template may put into the
    text."""

    def __init__(self, controls: Iterable[str], inputs: Iterable[object]) -> None:
        self._controls = sorted(filter(None, controls), key=len, reverse=True)
        self._find = re.compile("(" + "|".join(map(re.escape, self._controls)) + ")")
        used = {c for text in _strings(inputs) for c in _PRIVATE_CLASS.findall(text)}
        free = (chr(i) for i in _PRIVATE if chr(i) not in used)
        # A control token that begins like a word is replaced whole: its first letter is everywhere.
        words = [c for c in self._controls if re.match(r"[\w\s]", c)]
        firsts = sorted({c[0] for c in self._controls if c not in words})
        self._tails = _tails(self._controls)
        try:
            self._marks = {text: next(free) for text in [*words, *{*firsts, *self._tails}]}
        except StopIteration:
            raise RefusedError("the messages use up the private-use characters") from None
        self._shown = str.maketrans({mark: text for text, mark in self._marks.items()})
        self._hidden = str.maketrans({text: self._marks[text] for text in firsts})
        self._words = words

    def hide(self, text: str) -> str:
        """`text` with nothing in it that reads as a control token."""
        for word in self._words:
            text = text.replace(word, self._marks[word])
        text = text.translate(self._hidden)
        # A template may write '<' itself, before a typed name or key.
        rest = text.lstrip()
        tails = self._tails.get(rest[:1], ())
        if any(rest.startswith(tail) or tail.startswith(rest) for tail in tails):
            return text[: len(text) - len(rest)] + self._marks[rest[0]] + rest[1:]
        return text

    def hide_all(self, value: object) -> object:
        """The same for every string of a JSON value, keys too; the value itself is left alone."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {
                self.hide(key) if isinstance(key, str) else key: self.hide_all(item)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.hide_all(item) for item in value]
        return value

    def show(self, text: str) -> str:
        """The typed characters again."""
        return text.translate(self._shown)

    def segments(self, text: str) -> Iterator[tuple[str, bool]]:
        """The rendered text in pieces, with whether each is a control token that the template
        wrote."""
        if not self._controls:
            yield text, False
            return
        for i, piece in enumerate(self._find.split(text)):
            if piece:
                yield (piece, True) if i % 2 else (self.show(piece), False)


def _tails(controls: Iterable[str]) -> dict[str, list[str]]:
    """What may follow the beginning of a control token, by first character; not where that is a
    letter, since roles are words."""
    tails: dict[str, list[str]] = {}
    for control in controls:
        for i in range(1, len(control)):
            if not re.match(r"[\w\s]", control[i]):
                tails.setdefault(control[i], []).append(control[i:])
    return tails


def _strings(values: Iterable[object]) -> Iterator[str]:
    """Every string in JSON values; without recursion, since it sees them first, however deep."""
    left: list[object] = list(values)
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            left += value
