"""A command line to a checked CommandLine, by the table in cli/flags.py.

The model comes first and flags follow it; `--flag value` and `--flag=value` are the same; of a flag
given twice the last wins. A value may start with a dash unless it is itself the name of a flag:
`--flag=value` says even that. Knows no flag by name and imports nothing heavy. Refuses with
UsageError (exit 2) what caldrix checks itself and with RefusedError (exit 1) a serving flag,
unknown ones included.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caldrix.cli.flags import BY_NAME, FLAGS, Flag
from caldrix.errors import CaldrixError, RefusedError, UsageError, printable


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`line[key]` is a flag's value, the default where it was not given."""

    command: str
    model: str
    values: Mapping[str, Any]  # by flag key: every flag the command takes, given or not
    given: frozenset[str]  # the names of the flags that were given

    def __getitem__(self, key: str) -> Any:
        return self.values[key]


def parse(command: str, arguments: Sequence[str]) -> CommandLine:
    model = _model(command, arguments)
    values = {flag.key: flag.default for flag in FLAGS if command in flag.commands}
    given = set()
    for flag, spelling, text in typed_flags(command, arguments[1:]):
        value = _value(flag, spelling, text)
        values[flag.key] = (*values[flag.key], value) if flag.repeats else value  # type: ignore[misc]
        given.add(flag.name)
    return CommandLine(command, model, values, frozenset(given))


def _model(command: str, arguments: Sequence[str]) -> str:
    usage = f"caldrix {command} MODEL [flags]"
    if not arguments:
        raise UsageError(f"no model given: {usage}")
    first = arguments[0]
    if first.startswith("-") or not first:
        raise UsageError(f"{printable(first)} is no model: the model comes first: {usage}")
    return first


def typed_flags(command: str, arguments: Sequence[str]) -> Iterator[tuple[Flag, str, str | None]]:
    """(flag, as typed, its value as text or None for a switch), in the order given."""
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        spelling, equals, text = argument.partition("=")
        flag = BY_NAME.get(spelling)
        if flag is None:
            raise _unknown(command, argument, spelling)
        if command not in flag.commands:
            raise UsageError(f"{spelling}: {flag.why_not.format(command=command)}")
        if not flag.takes:
            if equals:
                raise UsageError(f"{spelling} takes no value")
            yield flag, spelling, None
        elif equals:
            yield flag, spelling, text
        elif not rest or rest[0].partition("=")[0] in BY_NAME:
            hint = f"; for the text {printable(rest[0])} write {flag.name}=..." if rest else ""
            raise UsageError(f"{spelling} needs a value: {spelling} {flag.takes}{hint}")
        else:
            yield flag, spelling, rest.pop(0)


def _unknown(command: str, argument: str, spelling: str) -> CaldrixError:
    if not spelling.startswith("-"):
        return UsageError(
            f"unexpected argument {printable(argument)}: the model comes first and flags follow it"
        )
    from difflib import get_close_matches

    names = [name for name, flag in BY_NAME.items() if command in flag.commands]
    near = get_close_matches(spelling, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"see caldrix {command} --help"
    return RefusedError(f"unknown flag {printable(spelling)[1:-1]}: {hint}")


def _value(flag: Flag, spelling: str, text: str | None) -> object:
    if text is None:
        return True
    kind = UsageError if flag.own else RefusedError
    try:
        return flag.kind.parse(text)
    except RefusedError as error:
        raise kind(f"{spelling}: {error}") from None
    except ValueError:
        raise kind(f"{spelling} {printable(text)}: takes {flag.kind.accepts}") from None
