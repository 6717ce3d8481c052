"""Tells the model's thinking from its answer in the text of a reply, piece by piece.

Owns the markers and what may be held back until it is clear that they do not begin there. Knows no
tokens. Thinking is what stands between the markers at the start of a reply, or before the closing
one where the prompt has opened it.
"""

from enum import Enum

OPEN, CLOSE = "<think>", "</think>"
Part = tuple[bool, str]  # is it thinking?, the text


class _Stage(Enum):
    START = "start"  # nothing but space so far
    THINKING = "thinking"
    AFTER = "after"  # between the closing marker and the answer
    ANSWER = "answer"


def prompt_opens(prompt: str) -> bool:
    """Whether a reply to this prompt begins inside its thinking."""
    return prompt.rstrip().endswith(OPEN)


class Splitter:
    def __init__(self, is_open: bool) -> None:
        # The reply so far
        self._stage = _Stage.THINKING if is_open else _Stage.START
        self._held = ""
        self._has_thought = False

    @property
    def is_thinking(self) -> bool:
        return self._stage is _Stage.THINKING

    def push(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """What was held back, when no more comes."""
        held, self._held = self._held, ""
        if self._stage is _Stage.THINKING:
            held = held.rstrip()
        elif self._stage is _Stage.AFTER:
            held = held.lstrip()
        return [(self.is_thinking, held)] if held else []

    def _step(self, parts: list[Part]) -> bool:
        """Moves on by one stage, if it can."""
        if self._stage is _Stage.START:
            return self._start()
        if self._stage is _Stage.THINKING:
            return self._think(parts)
        if self._stage is _Stage.AFTER:
            self._held = self._held.lstrip()
            if self._held:
                self._stage = _Stage.ANSWER
            return bool(self._held)
        if self._held:
            parts.append((False, self._held))
            self._held = ""
        return False

    def _start(self) -> bool:
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._held = text[len(OPEN) :]
            self._stage = _Stage.THINKING
            return True
        if OPEN.startswith(text):
            return False
        self._stage = _Stage.ANSWER
        return True

    def _think(self, parts: list[Part]) -> bool:
        if not self._has_thought:
            self._held = self._held.lstrip()
        thought, found, rest = self._held.partition(CLOSE)
        if found:
            self._say(parts, thought.rstrip())
            self._held = rest
            self._stage = _Stage.AFTER
            return True
        keep = len(thought) - _n_held(thought)
        self._say(parts, thought[:keep])
        self._held = thought[keep:]
        return False

    def _say(self, parts: list[Part], text: str) -> None:
        if text:
            self._has_thought = True
            parts.append((True, text))


def _n_held(text: str) -> int:
    """Characters at the end that may belong to the space before the marker or to the marker."""
    n = next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)
    before = text[: len(text) - n]
    return n + len(before) - len(before.rstrip())
