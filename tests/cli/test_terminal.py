"""The chat in a pseudo-terminal, with the real program: keys, pastes, Ctrl-C and Ctrl-D."""

import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from known_reply import write_model

pytestmark = pytest.mark.slow

REPLY = "The quick!"
# Each message is answered with the end of REPLY that says how long it was: "he quick!" for one
# character, "e quick!" for two.
LENGTH = '{{ "The quick!"[messages[-1].content | length - 1] }}'
COUNT = '{{ "The quick!"[messages | length - 1] }}'  # the same for the number of messages
ROOT = Path(__file__).resolve().parents[2]
PROMPT = r"(?:\A|[\r\n]|\x1b\[[\d;?]*[A-Za-z])> "
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COMMAND = [sys.executable, "-m", "caldrix", "run"]

Start = Callable[..., "Chat"]


def hang_up_as_by_default() -> None:
    """These tests may run under nohup, and what is ignored there stays ignored in a child."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Chat:
    def __init__(self, model: Path, *flags: str) -> None:
        environment = dict(os.environ, TERM="dumb", LC_ALL="C.UTF-8", PYTHONPATH=str(ROOT))
        program, *arguments = [*COMMAND, str(model), *flags]
        self.child = pexpect.spawn(
            program,
            arguments,
            env=environment,
            encoding="utf8",
            dimensions=(30, 200),
            timeout=30,
            preexec_fn=hang_up_as_by_default,
        )

    def prompt(self) -> str:
        """What is shown up to the next prompt."""
        self.child.expect(PROMPT)
        return CONTROL.sub("", self.child.before or "").replace("\r", "")

    def asks(self, keys: str) -> str:
        """What follows the echo of a typed line, up to the next prompt."""
        self.child.send(keys + "\r")
        return self.prompt().removeprefix(keys).strip("\n")

    def ends(self) -> int | None:
        self.child.expect(pexpect.EOF)
        assert "Traceback" not in (self.child.before or "")
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    chats: list[Chat] = []

    def run(*flags: str, reply: str = REPLY, **options: object) -> Chat:
        model = tmp_path / f"model-{len(chats)}"
        write_model(model, reply, **options)  # type: ignore[arg-type]
        chats.append(Chat(model, *flags))
        return chats[-1]

    yield run
    for chat in chats:
        chat.child.close(force=True)


def test_a_conversation_from_start_to_ctrl_d(start: Start) -> None:
    chat = start()
    assert "/help" in chat.prompt()
    assert chat.asks("hi") == REPLY
    assert chat.asks("/top-k 40") == "caldrix: top-k 40"
    assert chat.asks("") == ""
    assert chat.asks("/reset") == "caldrix: the conversation is cleared"
    assert chat.asks("zażółć 🫠") == REPLY
    chat.child.send("\x04")
    assert chat.ends() == 0


def test_ctrl_c_at_the_prompt_ends_with_130(start: Start) -> None:
    chat = start()
    chat.prompt()
    assert chat.asks("hi") == REPLY
    chat.child.send("half a line\x03")
    assert chat.ends() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_kill_at_the_prompt_leaves_the_terminal_as_it_was(start: Start, number: int) -> None:
    chat = start()
    kept = os.dup(chat.child.child_fd)
    before = termios.tcgetattr(kept)
    chat.prompt()
    assert termios.tcgetattr(kept) != before  # the line editor's own settings
    chat.child.kill(number)
    assert chat.ends() == 128 + number
    assert termios.tcgetattr(kept) == before
    os.close(kept)


def test_ctrl_c_stops_an_answer_and_the_next_one_starts_afresh(start: Start) -> None:
    chat = start("--ctx", "4096", reply="ABC", repeats=True)
    chat.prompt()
    for _ in range(2):
        chat.child.send("hi\r")
        chat.child.expect_exact("ABCABC")
        chat.child.send("\x03")
        shown = chat.prompt()
        assert len(shown) < 4000
        assert "error" not in shown.lower()
    chat.child.send("again\r")
    chat.child.expect_exact("again")
    chat.child.expect("[ABC]")
    assert chat.child.after == "A"
    chat.child.send("\x03")
    chat.prompt()
    chat.child.send("\x04")
    assert chat.ends() == 0


def test_lines_typed_ahead_are_answered_in_order(start: Start) -> None:
    chat = start(template=LENGTH)
    chat.prompt()
    chat.child.send("a\rbb\rccc\r")
    shown = "".join(chat.prompt() for _ in range(3))
    assert re.findall(r"[he ]*quick!", shown) == ["he quick!", "e quick!", " quick!"]


def test_a_bracketed_paste_is_one_message_without_its_markers(start: Start) -> None:
    chat = start(template=LENGTH)
    chat.prompt()
    chat.child.send("\x1b[200~a\nb\x1b[201~\r")
    assert chat.prompt().endswith(" quick!")  # a, line break, b
    assert chat.asks("ab") == "e quick!"


def test_delete_removes_whole_characters(start: Start) -> None:
    chat = start(template=LENGTH)
    chat.prompt()
    chat.child.send("é🫠\x7f\x7fab\r")
    assert chat.prompt().endswith("\ne quick!")


def test_plain_has_no_line_editing_and_answers_just_as_well(start: Start) -> None:
    chat = start("--plain")
    assert "/help" not in chat.prompt()
    assert chat.asks("hi") == REPLY
    chat.child.send("\x04")
    assert chat.ends() == 0
    assert chat.child.before == "\r\n"  # what the shell shows next starts its own line
    chat = start("--plain")
    chat.prompt()
    chat.child.send("\x03")
    assert chat.ends() == 130
    assert chat.child.before.endswith("\r\n")


def test_ctrl_c_while_the_answer_goes_to_a_pipe(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", "ABC", repeats=True)
    run = subprocess.Popen(
        [*COMMAND, str(model), "-p", "hi", "--ctx", "4096"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
    )
    assert run.stdout is not None
    first = run.stdout.read(6)
    run.send_signal(signal.SIGINT)
    rest, errors = run.communicate(timeout=30)
    assert run.returncode == 130
    assert set((first + rest).decode().strip()) == set("ABC")
    assert len(rest) < 4000
    assert b"Traceback" not in errors


def test_a_reader_that_leaves_ends_the_run_quietly(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", "ABC", repeats=True)
    command = " ".join([*COMMAND, str(model), "-p", "hi", "--ctx", "4096"])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -c 5"],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
    )
    assert (done.returncode, done.stdout) == (1, "ABCAB")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert "internal error" not in done.stderr


def test_ctrl_c_before_the_answer_began_forgets_the_message(start: Start) -> None:
    long_loop = "{% for i in range(3000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}"
    slow = "{% if messages[-1].content == 'abc' %}" + long_loop + "{% endif %}"
    chat = start(template=slow + COUNT)
    chat.prompt()
    chat.child.send("abc\r")
    chat.child.expect_exact("abc\r\n")
    chat.child.send("\x03")
    assert "quick" not in chat.prompt()
    assert chat.asks("d") == "he quick!"  # the only message there is
