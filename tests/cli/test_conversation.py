"""The prompts of a chat: turns kept and dropped, the room for the answer, the system text."""

from typing import Any

import pytest
from fake_text import Template, Tokenizer, text_of

from caldrix.cli.conversation import Conversation
from caldrix.errors import RefusedError


class Chat:
    """A conversation with what it said on its status line."""

    def __init__(self, context: int = 100, **options: Any) -> None:
        self.said: list[str] = []
        template = options.pop("template", Template())
        self.conversation = Conversation(
            Tokenizer(), template, context, status=self.said.append, **options
        )

    def sends(self, message: str) -> str:
        return text_of(self.conversation.prompt(message))

    def turn(self, message: str, reply: str) -> str:
        sent = self.sends(message)
        self.conversation.keep(message, reply)
        return sent


def test_each_message_is_sent_with_the_earlier_turns() -> None:
    chat = Chat()
    assert chat.turn("one", "1") == "u:one|a:"
    assert chat.turn("two", "2") == "u:one|a:1|u:two|a:"
    assert chat.sends("three") == "u:one|a:1|u:two|a:2|u:three|a:"
    assert chat.said == []


def test_reset_clears_the_turns_and_keeps_the_system_text() -> None:
    chat = Chat(system="S")
    chat.turn("one", "1")
    chat.conversation.reset()
    assert chat.sends("two") == "s:S|u:two|a:"


@pytest.mark.parametrize(
    ("context", "max_tokens", "room"),
    [(100, None, 25), (100, 10, 10), (100, 50, 50), (100, 80, 50), (2, None, 0), (1, 1, 0)],
)
def test_the_room_for_the_answer(context: int, max_tokens: int | None, room: int) -> None:
    assert Chat(context, max_tokens=max_tokens).conversation.room == room


def test_the_oldest_turns_are_dropped_and_counted() -> None:
    chat = Chat(40, max_tokens=10, system="S")  # 30 for the prompt
    chat.turn("aaaa", "1")  # s:S| u:aaaa| a: = 4 + 7 + 2
    chat.turn("bbbb", "2")  # 4 + 7 + 4 + 7 + 2 = 24
    assert chat.sends("cc") == "s:S|u:bbbb|a:2|u:cc|a:"
    assert chat.said == ["dropped the 1 oldest turn: the conversation outgrew --ctx 40"]
    chat.conversation.keep("cc", "3")
    assert chat.sends("d" * 20) == "s:S|u:" + "d" * 20 + "|a:"
    assert chat.said[1:] == ["dropped the 2 oldest turns: the conversation outgrew --ctx 40"]


def test_a_prompt_that_just_fits_drops_nothing() -> None:
    chat = Chat(40, max_tokens=10)
    chat.turn("a" * 5, "1")  # u:aaaaa|a:1| = 12 with the reply
    assert len(chat.sends("b" * 13)) == 30
    assert chat.said == []
    assert len(chat.sends("b" * 14)) == 19
    assert len(chat.said) == 1


def test_a_message_too_long_is_refused_and_changes_nothing() -> None:
    chat = Chat(40)
    chat.turn("one", "1")
    with pytest.raises(RefusedError, match="the prompt is 40 tokens and --ctx is 40"):
        chat.sends("x" * 35)
    assert chat.sends("two") == "u:one|a:1|u:two|a:"
    assert chat.said == []


def test_a_message_may_take_the_room_of_the_answer_when_it_is_alone() -> None:
    chat = Chat(40, max_tokens=20)
    assert len(chat.sends("x" * 34)) == 39
    chat.turn("one", "1")
    assert len(chat.sends("x" * 34)) == 39
    assert len(chat.said) == 1


def test_without_a_template_each_message_stands_alone() -> None:
    chat = Chat(template=None)
    assert chat.turn("one", "1") == "\x01one"
    assert chat.turn("two", "2") == "\x01two"
    with pytest.raises(RefusedError, match="101 tokens"):
        chat.sends("x" * 100)


def test_without_a_template_a_reply_stops_at_256_tokens() -> None:
    assert Chat(template=None).conversation.max_tokens == 256
    assert Chat(template=None, max_tokens=300).conversation.max_tokens == 300
    assert Chat().conversation.max_tokens is None


def test_a_template_without_a_system_role_gets_it_in_the_first_message() -> None:
    chat = Chat(60, max_tokens=20, template=Template(takes_system=False), system="SYS")
    assert chat.turn("one", "1") == "u:SYS\n\none|a:"
    assert chat.turn("two", "2") == "u:SYS\n\none|a:1|u:two|a:"
    assert len(chat.said) == 1
    assert "system" in chat.said[0]
    assert chat.sends("t" * 16) == "u:SYS\n\ntwo|a:2|u:" + "t" * 16 + "|a:"
    assert len(chat.said) == 2  # the dropped turn; the system text is said once


def test_a_refusal_that_is_not_about_the_system_text_is_passed_on() -> None:
    chat = Chat(template=Template(refuses="bad"), system="SYS")
    with pytest.raises(RefusedError, match="no bad here"):
        chat.sends("bad")
    assert chat.sends("good") == "s:SYS|u:good|a:"
    assert chat.said == []


def test_the_system_text_can_change_between_messages() -> None:
    chat = Chat()
    chat.conversation.system = "A"
    assert chat.turn("one", "1") == "s:A|u:one|a:"
    chat.conversation.system = None
    assert chat.sends("two") == "u:one|a:1|u:two|a:"
