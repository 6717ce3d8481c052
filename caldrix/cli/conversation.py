"""What is sent to the model for each message: the turns that fit, through the chat template.

Owns the turns, the system text, the room kept for the answer and the dropping of the oldest turns.
Knows no engine and no terminal: it gives token ids, and says on `status` whatever is not as the
user asked. A message that does not fit is refused and changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caldrix.errors import RefusedError

if TYPE_CHECKING:
    from caldrix.text.chat_template import ChatTemplate
    from caldrix.text.tokenizer import Tokenizer

NO_TEMPLATE_MAX_TOKENS = 256  # a base model rarely ends its own reply
NO_SYSTEM = "without a chat template there is no system message"


@dataclass(frozen=True, slots=True)
class Turn:
    message: str
    reply: str


class Conversation:
    """The turns of one chat. `system` may be changed between messages."""

    def __init__(
        self,
        tokenizer: "Tokenizer",
        template: "ChatTemplate | None",
        context: int,
        *,
        max_tokens: int | None = None,
        system: str | None = None,
        status: Callable[[str], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._context = context
        self._max_tokens = max_tokens
        self._status = status
        self._turns: list[Turn] = []
        self.system = system
        self._said_moved = False  # that the template takes no system message

    @property
    def max_tokens(self) -> int | None:
        """The most tokens a reply may have; None for as many as the context holds."""
        if self._max_tokens is None and self._template is None:
            return NO_TEMPLATE_MAX_TOKENS
        return self._max_tokens

    @property
    def room(self) -> int:
        """Tokens kept free for the answer when the conversation outgrows the context."""
        wanted = self._context // 4 if self._max_tokens is None else self._max_tokens
        return min(wanted, self._context // 2)

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def prompt(self, message: str) -> tuple[int, ...]:
        """The token ids for `message`, after as many earlier turns as leave room for the answer."""
        if self._template is None:
            return self._checked(self._plain(message))
        ids = self._encode(self._turns, message)
        if not self._turns or len(ids) + self.room <= self._context:
            return self._checked(ids)
        self._checked(self._encode([], message))
        n_dropped = 0
        while n_dropped < len(self._turns) and len(ids) + self.room > self._context:
            n_dropped += 1
            ids = self._encode(self._turns[n_dropped:], message)
        turns = f"{n_dropped} oldest turn{'s' if n_dropped > 1 else ''}"
        self._status(f"dropped the {turns}: the conversation outgrew --ctx {self._context}")
        del self._turns[:n_dropped]
        return ids

    def keep(self, message: str, reply: str) -> None:
        """Closes a turn, whole or cut short; without a chat template there is no conversation."""
        if self._template is not None:
            self._turns.append(Turn(message, reply))

    def reset(self) -> None:
        """Clears the turns; the system text stays."""
        self._turns.clear()

    def _checked(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        if len(ids) >= self._context:
            raise RefusedError(
                f"the prompt is {len(ids)} tokens and --ctx is {self._context}: too long"
            )
        return ids

    def _plain(self, message: str) -> tuple[int, ...]:
        """The text alone; what a person types never becomes a control token."""
        ids = self._tokenizer.encode_text(message)
        bos = self._tokenizer.bos_id if self._tokenizer.adds_bos else None
        return tuple(ids) if bos is None else (bos, *ids)

    def _encode(self, turns: list[Turn], message: str) -> tuple[int, ...]:
        messages: list[dict[str, str]] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        for turn in turns:
            messages.append({"role": "user", "content": turn.message})
            messages.append({"role": "assistant", "content": turn.reply})
        messages.append({"role": "user", "content": message})
        assert self._template is not None
        ids, moved = self._template.encode_with_system_fallback(self._tokenizer, messages)
        if moved and not self._said_moved:
            self._said_moved = True
            self._status(
                "the chat template takes no system message; "
                "the system text goes at the top of the first user message"
            )
        return tuple(ids)
