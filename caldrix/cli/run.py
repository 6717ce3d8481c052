"""`caldrix run MODEL`: answers one prompt with -p, or chats (cli/chat.py).

Owns the order of a run and its exit status. The answer alone goes to stdout; everything else is a
status line. Heavy modules are imported after the command line has been checked.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from caldrix import log
from caldrix.cli.parse import CommandLine, parse
from caldrix.errors import CaldrixError, UsageError

if TYPE_CHECKING:
    from caldrix.cli.conversation import Conversation
    from caldrix.cli.output import Output
    from caldrix.cli.replies import Replies
    from caldrix.engine.generate import Result
    from caldrix.engine.load import LoadedModel


def main(arguments: Sequence[str]) -> int:
    from caldrix.cli import prepare, rules
    from caldrix.cli.output import Output

    line = parse("run", arguments)
    lane = rules.check(line)
    inputs = prepare.read_inputs(line)
    output = Output(exact=line["plain"])
    model = prepare.load(line, lane)
    if inputs.images:
        raise UsageError(f"{model.name} {prepare.TEXT_ONLY}")
    from caldrix.cli.replies import Replies

    conversation = start_conversation(line, model, inputs.system)
    replies = Replies(model, output)
    try:
        if inputs.prompt is not None:
            return answer_once(line, inputs.prompt, conversation, replies, output)
        from caldrix.cli import chat

        return chat.chat(line, conversation, replies, output)
    finally:
        replies.close()


def start_conversation(
    line: CommandLine, model: "LoadedModel", system: str | None
) -> "Conversation":
    from caldrix.cli.conversation import NO_SYSTEM, Conversation

    template = None if line["raw"] else model.chat_template
    if model.chat_template is None:
        log.status(f"{model.name} has no chat template: the prompt is sent as plain text")
    if template is None and system is not None:
        log.status(f"--system is not used: {NO_SYSTEM}")
    return Conversation(
        model.tokenizer,
        template,
        model.context,
        max_tokens=line["max_tokens"],
        system=system,
        status=log.status,
    )


def answer_once(
    line: CommandLine,
    prompt: str,
    conversation: "Conversation",
    replies: "Replies",
    output: "Output",
) -> int:
    from caldrix.cli.interrupts import INTERRUPTED, stopping
    from caldrix.cli.replies import was_stopped
    from caldrix.cli.sampling import sampling_params, sampling_values

    sampling = sampling_params(sampling_values(line))
    with stopping() as stop:
        ids = conversation.prompt(prompt)
        try:
            reply = replies.answer(ids, sampling, conversation.max_tokens, stop)
        except CaldrixError:
            output.end_line()
            raise
        output.end_line(interrupted=was_stopped(reply))
    if was_stopped(reply):
        return INTERRUPTED
    say_how_it_ended(reply, conversation)
    if not line["plain"]:
        log.status(timing(reply))
    return 0


def say_how_it_ended(reply: "Result", conversation: "Conversation") -> None:
    """A reply cut by --max-tokens was asked to be; one cut by the context was not."""
    if reply.finish_reason.value == "length" and reply.n_completion != conversation.max_tokens:
        log.status("the context is full: the answer ends here; --ctx N makes it longer")


def timing(reply: "Result") -> str:
    """`19 prompt tokens in 0.02 s, 10 new tokens in 0.05 s (180.3 a second)`."""
    from caldrix.units import format_seconds

    first = reply.timings.first_token_s or 0.0
    text = f"{reply.n_prompt} prompt tokens in {format_seconds(first)}"
    gap = reply.timings.token_s
    if not gap:
        return text
    rest = format_seconds(gap * (reply.n_completion - 1))
    return f"{text}, {reply.n_completion - 1} more tokens in {rest} ({1 / gap:.1f} a second)"
