"""The slash commands: what each changes, what it says, and that a bad value changes nothing."""

from pathlib import Path

import pytest
from fake_text import Template, Tokenizer

from caldrix.cli.commands import COMMANDS, ChatState, is_command, run_command
from caldrix.cli.conversation import Conversation
from caldrix.cli.parse import parse
from caldrix.cli.sampling import sampling_params, sampling_values

SETTINGS = [  # (command, good value, as shown, bad values, as shown when off)
    ("temperature", "0.7", "0.7", ["-1", "nan", "inf", "x"], "0"),
    ("top-k", "40", "40", ["-3", "1.5", "x"], "0"),
    ("top-p", "0.9", "0.9", ["0", "1.1", "nan"], "1"),
    ("min-p", "0.25", "0.25", ["2", "-0.1"], "0"),
    ("repetition-penalty", "1.3", "1.3", ["0", "inf"], "1"),
    ("seed", "1234567890", "1234567890", ["x", "1.5"], "fresh entropy per reply"),
]


@pytest.fixture
def state() -> ChatState:
    conversation = Conversation(Tokenizer(), Template(), 100, status=lambda message: None)
    return ChatState(conversation, sampling_values(parse("run", ["m"])))


def says(state: ChatState, line: str, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    run_command(state, line)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err
    return captured.err


@pytest.mark.parametrize(("name", "good", "shown", "bad", "off"), SETTINGS)
def test_a_setting_is_set_shown_refused_and_turned_off(
    state: ChatState,
    capfd: pytest.CaptureFixture[str],
    name: str,
    good: str,
    shown: str,
    bad: list[str],
    off: str,
) -> None:
    default = dict(state.sampling)
    line = f"caldrix: {name} {shown}\n"
    assert says(state, f"/{name} {good}", capfd) == line
    assert says(state, f"/{name}", capfd) == line
    assert says(state, f"/{name}\t{good} ", capfd) == line
    for value in bad:
        said = says(state, f"/{name} {value}", capfd)
        assert f"it stays {name} {shown}" in said
        assert said.count("\n") == 1
    assert says(state, f"/{name}", capfd) == line
    assert says(state, f"/{name} off", capfd) == f"caldrix: {name} {off}\n"
    assert state.sampling == default


def test_sampling_shows_all_six_on_one_line(
    state: ChatState, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, good, *_ in SETTINGS:
        run_command(state, f"/{name} {good}")
    said = says(state, "/sampling", capfd)
    assert said.count("\n") == 1
    for name, _, shown, *_ in SETTINGS:
        assert f"{name} {shown}" in said
    params = sampling_params(state.sampling)
    assert (params.temperature, params.top_k, params.seed) == (0.7, 40, 1234567890)


def test_reset_leaves_the_settings_and_the_system_text(
    state: ChatState, capfd: pytest.CaptureFixture[str]
) -> None:
    state.conversation.keep("one", "1")
    run_command(state, "/temperature 2")
    run_command(state, "/system be brief")
    assert "cleared" in says(state, "/reset", capfd)
    assert state.sampling["temperature"] == 2
    assert state.conversation.system == "be brief"
    assert "".join(map(chr, state.conversation.prompt("x"))) == "s:be brief|u:x|a:"


def test_system_is_set_read_from_a_file_shown_and_removed(
    state: ChatState, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.txt").write_text("from a file\n", encoding="utf8")
    assert "no system text" in says(state, "/system", capfd)
    assert "'from a file'" in says(state, f"/system @{tmp_path}/s.txt", capfd)
    assert "no such file" in says(state, "/system @/nowhere/at-all", capfd)
    assert "'from a file'" in says(state, "/system", capfd)
    assert "no system text" in says(state, "/system off", capfd)
    assert state.conversation.system is None


def test_a_system_text_without_a_chat_template_is_said_not_to_be_used(
    capfd: pytest.CaptureFixture[str],
) -> None:
    conversation = Conversation(Tokenizer(), None, 100, status=lambda message: None)
    state = ChatState(conversation, sampling_values(parse("run", ["m"])))
    assert "the system text is not used: without a chat" in says(state, "/system be brief", capfd)
    assert "not used" not in says(state, "/system off", capfd)


def test_an_image_needs_a_vision_model(state: ChatState, capfd: pytest.CaptureFixture[str]) -> None:
    assert "takes text only" in says(state, "/image a.png", capfd)


def test_help_lists_every_command(state: ChatState, capfd: pytest.CaptureFixture[str]) -> None:
    said = says(state, "/help", capfd)
    for command in COMMANDS:
        assert f"/{command.name}" in said


@pytest.mark.parametrize("line", ["/no-such-command", "/", "/ reset", "/Reset", "/\x1b[31m"])
def test_an_unknown_command_says_so(
    state: ChatState, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    said = says(state, line, capfd)
    assert "/help" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("line", "expected"),
    [("/reset", True), ("/etc/passwd", True), ("//etc", False), ("hi /reset", False), ("", False)],
)
def test_what_counts_as_a_command(line: str, expected: bool) -> None:
    assert is_command(line) is expected
