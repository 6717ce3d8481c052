"""The chat: a line is a message or a command, an answer streams, and so on to the end of input.

Owns that loop and what Ctrl-C does in it. At the prompt of a terminal Ctrl-C ends the chat; while
an answer is on its way it stops the answer, whose text so far stays in the conversation as a closed
turn. A message stopped before its answer began is forgotten. From a pipe Ctrl-C ends the chat in
both cases.
"""

import sys
from typing import TYPE_CHECKING

from caldrix import log
from caldrix.cli.commands import ChatState, is_command, run_command
from caldrix.cli.conversation import Conversation
from caldrix.cli.interrupts import INTERRUPTED, raising, stopping
from caldrix.cli.lines import MAX_LINE, LineTooLong, Terminal, open_lines
from caldrix.cli.output import Output
from caldrix.cli.parse import CommandLine
from caldrix.cli.run import say_how_it_ended
from caldrix.cli.sampling import sampling_params, sampling_values
from caldrix.errors import CaldrixError

if TYPE_CHECKING:
    from caldrix.cli.replies import Replies


def chat(line: CommandLine, conversation: Conversation, replies: "Replies", output: Output) -> int:
    state = ChatState(conversation, sampling_values(line))
    lines = open_lines(plain=line["plain"])
    if isinstance(lines, Terminal):
        log.status("one line is one message; /help lists the commands, Ctrl-D ends the chat")
    is_interactive = sys.stdin is not None and sys.stdin.isatty()
    while True:
        try:
            with raising():
                message = lines.read()
        except LineTooLong:
            log.status(f"the message is too long: a line is at most {MAX_LINE} bytes")
            continue
        except KeyboardInterrupt:
            lines.end_prompt()
            return INTERRUPTED
        if message is None:
            lines.end_prompt()
            return 0
        if is_command(message):
            run_command(state, message)
        elif message.strip():
            text = message[1:] if message.startswith("//") else message
            if answer(state, text, replies, output) and not is_interactive:
                return INTERRUPTED


def answer(state: ChatState, message: str, replies: "Replies", output: Output) -> bool:
    """One answer, kept as a turn; whether Ctrl-C stopped it. A refused message is forgotten."""
    from caldrix.cli.replies import was_stopped

    conversation = state.conversation
    with stopping() as stop:
        try:
            ids = conversation.prompt(message)
        except KeyboardInterrupt:
            output.end_line(interrupted=True)
            return True
        except CaldrixError as error:
            log.status(str(error))
            return False
        try:
            sampling = sampling_params(state.sampling)
            reply = replies.answer(ids, sampling, conversation.max_tokens, stop)
        except CaldrixError as error:
            output.end_line()
            log.status(str(error))
            return False
        output.end_line(interrupted=was_stopped(reply))
        if was_stopped(reply):
            if reply.text:
                conversation.keep(message, reply.text)
            return True
        conversation.keep(message, reply.text)
        say_how_it_ended(reply, conversation)
        return False
