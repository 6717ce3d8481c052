"""A tokenizer of one token a character and a template that shows its messages, for tests of turns.

`Template` gives one id for each character of `render`, so that lengths can be counted by
hand: a message costs its characters and 3 more, the answer's heading 2.
"""

from typing import Any

from caldrix.text.chat_template import TemplateRefused
from caldrix.text.conversation import system_moved


class Tokenizer:
    bos_id = 1
    adds_bos = True

    def encode_text(self, text: str) -> list[int]:
        return [ord(c) for c in text]


class Template:
    def __init__(self, *, takes_system: bool = True, refuses: str = "") -> None:
        self._takes_system = takes_system
        self._refuses = refuses  # any conversation with this text in it

    def render(self, messages: list[dict[str, Any]]) -> str:
        text = "".join(f"{m['role'][0]}:{m['content']}|" for m in messages) + "a:"
        if self._refuses and self._refuses in text:
            raise TemplateRefused(f"no {self._refuses} here")
        return text

    def encode_with_system_fallback(
        self, tokenizer: Tokenizer, messages: list[dict[str, Any]]
    ) -> tuple[list[int], bool]:
        moves = messages[0]["role"] == "system" and not self._takes_system
        sent = system_moved(messages) if moves else messages
        return tokenizer.encode_text(self.render(sent)), moves


def text_of(ids: tuple[int, ...]) -> str:
    return "".join(map(chr, ids))
