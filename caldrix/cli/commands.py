"""The chat's slash commands: one table, one function each.

A command changes the state of the chat or says something on stderr; it is never a message and never
runs the model. Sampling commands check their value as the flag of the same name does, and a refused
one changes nothing. Values hold from the next reply on.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from caldrix import log
from caldrix.cli.conversation import NO_SYSTEM, Conversation
from caldrix.cli.flags import BY_NAME, SAMPLING
from caldrix.errors import CaldrixError, printable


@dataclass(slots=True)
class ChatState:
    conversation: Conversation
    sampling: dict[str, Any]  # by flag key


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    takes: str
    help: str
    run: Callable[[ChatState, str], None]


def is_command(line: str) -> bool:
    """A line that starts with one slash; two send a message that starts with one."""
    return line.startswith("/") and not line.startswith("//")


def run_command(state: ChatState, line: str) -> None:
    name, _, argument = re.sub(r"\s", " ", line[1:], count=1).partition(" ")  # a tab ends it too
    command = BY_COMMAND.get(name)
    if command is None:
        log.status(
            f"no command {printable('/' + name)}: /help lists them; "
            "start a message with // to send a slash"
        )
        return
    try:
        command.run(state, argument.strip())
    except CaldrixError as error:
        log.status(str(error))


def _help(state: ChatState, argument: str) -> None:
    width = max(len(f"{c.name} {c.takes}") for c in COMMANDS) + 1
    for command in COMMANDS:
        log.status(f"/{f'{command.name} {command.takes}'.strip():<{width}} {command.help}")
    log.status("a line that starts with // is sent as a message that starts with /")


def _reset(state: ChatState, argument: str) -> None:
    state.conversation.reset()
    log.status("the conversation is cleared")


def _system(state: ChatState, argument: str) -> None:
    from caldrix.cli.prepare import read_system

    if argument == "off":
        state.conversation.system = None
    elif argument:
        state.conversation.system = read_system(argument, "/system")
    text = state.conversation.system
    log.status("no system text" if text is None else f"system text: {printable(text)}")
    if text is not None and not state.conversation.has_template:
        log.status(f"the system text is not used: {NO_SYSTEM}")


def _image(state: ChatState, argument: str) -> None:
    from caldrix.cli.prepare import TEXT_ONLY

    log.status(f"this model {TEXT_ONLY}")


def _show_sampling(state: ChatState, argument: str) -> None:
    log.status(", ".join(_setting(state, name) for name in SAMPLING))


def _setting(state: ChatState, name: str) -> str:
    flag = BY_NAME[name]
    value = state.sampling[flag.key]
    return f"{name.lstrip('-')} {flag.shown if value is None else shown_number(value)}"


def shown_number(value: float) -> str:
    """`0.7`, `40`: a whole number without a fraction, any other in full."""
    return repr(value).removesuffix(".0")


def _sampling_command(name: str) -> Command:
    flag = BY_NAME[name]
    word = name.lstrip("-")

    def run(state: ChatState, argument: str) -> None:
        if argument == "off":
            state.sampling[flag.key] = flag.default
        elif argument:
            try:
                state.sampling[flag.key] = flag.kind.parse(argument)
            except ValueError:
                accepts = f"/{word} {printable(argument)}: takes {flag.kind.accepts}, or off"
                log.status(f"{accepts}; it stays {_setting(state, name)}")
                return
        log.status(_setting(state, name))

    return Command(word, flag.takes, flag.help, run)


COMMANDS = (
    Command("help", "", "list the commands", _help),
    Command("reset", "", "clear the conversation; the system text and the sampling stay", _reset),
    Command("system", "TEXT|@FILE|off", "set, remove or show the system text", _system),
    Command("image", "PATH", "attach an image to the next message", _image),
    Command("sampling", "", "show the six sampling settings", _show_sampling),
    *(_sampling_command(name) for name in SAMPLING),
)
BY_COMMAND = {command.name: command for command in COMMANDS}


def markdown_table() -> str:
    """The table of commands, as the page in docs/ shows it."""
    rows = ["| command | what it does |", "|---|---|"]
    for command in COMMANDS:
        usage = f"/{command.name} {command.takes}".strip().replace("|", "\\|")
        rows.append(f"| `{usage}` | {command.help} |")
    return "\n".join(rows) + "\n"
