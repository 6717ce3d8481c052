"""Whole runs in one process: what goes to stdout, what to stderr, and the exit status.

The text side and the engine are the real ones; the compiled program is a table from each token to
the next, so that the reply to anything is known.
"""

import io
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from known_reply import END, TEMPLATE, write_model

from caldrix import native
from caldrix.cli import prepare
from caldrix.cli.main import main
from caldrix.engine.load import LoadedModel
from caldrix.text.chat_template import load_chat_template
from caldrix.text.tokenizer import load_tokenizer

REPLY = "The quick!"


@dataclass
class Successors:
    """Steps by a table; `before` may look at the tokens of a step and interfere."""

    table: dict[int, int]
    context: int
    vocab_size: int = 300
    n_slots: int = 1
    max_rows: int = 64
    max_out: int = 1
    before: Callable[[list[int]], None] = lambda tokens: None
    is_finite: Callable[[int], bool] = lambda token: True
    prompts: list[int] = field(default_factory=list)  # every token stepped, in order

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        out_rows: Sequence[int],
        sampling: object,
    ) -> list[native.Pick]:
        self.before(list(tokens))
        self.prompts += tokens
        picked = [self.table.get(tokens[row], END) for row in out_rows]
        return [native.Pick(token, self.is_finite(token)) for token in picked]

    def describe(self) -> str:
        return "0 embed"

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


class Stage:
    """A model to run and the place to run it in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._monkeypatch = monkeypatch
        self._directory = tmp_path / "stage"
        self.use()

    def use(
        self,
        reply: str = REPLY,
        *,
        repeats: bool = False,
        context: int = 2048,
        template: str | None = TEMPLATE,
    ) -> Successors:
        directory = self._directory / str(len(os.listdir(self._directory.parent)))
        write_model(directory, reply, template=template)
        chain = reply.encode()
        last = chain[0] if repeats else END
        table = {ord("\n"): chain[0], **dict(zip(chain, [*chain[1:], last], strict=True))}
        self.program = Successors(table, context)
        model = LoadedModel(
            self.program,  # type: ignore[arg-type]
            load_tokenizer(directory),
            load_chat_template(directory),
            frozenset({END}),
            "staged",
            context,
        )
        self._monkeypatch.setattr(prepare, "load", lambda line, lane: model)
        return self.program

    def says(self, text: bytes) -> None:
        """What stands on stdin."""
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    return Stage(monkeypatch, tmp_path)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    status = main(["run", "m", *arguments])
    out, err = capfd.readouterr()
    return status, out, err


Run = Any  # the fixture below: run with the test's own capfd


@pytest.fixture
def caldrix(capfd: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: run(capfd, *arguments)


def test_the_answer_alone_is_on_stdout(stage: Stage, caldrix: Run) -> None:
    status, out, err = caldrix("-p", "hi")
    assert (status, out) == (0, REPLY + "\n")
    assert "prompt tokens in" in err
    assert caldrix("-p", "hi", "--plain") == (0, REPLY + "\n", "")


@pytest.mark.parametrize("n_tokens", [1, 3, 9, 10, 11, 500])
def test_max_tokens(stage: Stage, caldrix: Run, n_tokens: int) -> None:
    status, out, err = caldrix("-p", "hi", "--max-tokens", str(n_tokens), "--plain")
    assert (status, out, err) == (0, REPLY[:n_tokens] + "\n", "")


def test_a_reply_that_fills_the_context_says_so(stage: Stage, caldrix: Run) -> None:
    stage.use("ABC", repeats=True, context=64)
    status, out, err = caldrix("-p", "hi", "--plain")
    n_prompt = len("<r>user\nhi<e><r>assistant\n") - 6
    assert (status, len(out)) == (0, 64 - n_prompt + 1)
    assert "the context is full" in err


def test_a_prompt_over_the_context_is_refused_with_both_numbers(stage: Stage, caldrix: Run) -> None:
    stage.use(context=64)
    status, out, err = caldrix("-p", "x" * 100)
    assert (status, out) == (1, "")
    assert err == "caldrix: the prompt is 118 tokens and --ctx is 64: too long\n"


def test_a_base_model_gets_plain_text_and_stops_at_256_tokens(stage: Stage, caldrix: Run) -> None:
    stage.use("ABC", repeats=True, template=None)
    status, out, err = caldrix("-p", "xA", "--plain")
    assert (status, out) == (0, ("BCA" * 90)[:256] + "\n")
    assert err == "caldrix: staged has no chat template: the prompt is sent as plain text\n"
    assert caldrix("-p", "xA", "--max-tokens", "4")[1] == "BCAB\n"


def test_raw_sends_the_prompt_without_the_template(stage: Stage, caldrix: Run) -> None:
    status, out, err = caldrix("-p", "<|end|>T", "--raw", "--system", "s", "--plain")
    assert (status, out) == (0, REPLY[1:] + "\n")
    assert bytes(stage.program.prompts[:8]) == b"<|end|>T"
    assert "--system is not used" in err


def test_an_empty_prompt_is_answered_or_refused(stage: Stage, caldrix: Run) -> None:
    assert caldrix("-p", "")[:2] == (0, REPLY + "\n")
    status, out, err = caldrix("-p", "", "--raw")
    assert (status, out) == (1, "")
    assert "the prompt is empty" in err


def test_the_system_text_comes_first(stage: Stage, caldrix: Run, tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_bytes("żółć\n".encode())
    assert caldrix("-p", "hi", "--system", f"@{tmp_path}/s.txt")[0] == 0
    sent = bytes(token for token in stage.program.prompts if token < 256)
    assert sent.startswith("system\nżółć".encode() + b"user\nhi")
    status, out, err = caldrix("-p", "hi", "--system", "@/nowhere/at-all")
    assert (status, out) == (2, "")
    assert "/nowhere/at-all: no such file" in err


def test_ctrl_c_leaves_the_text_so_far_and_130(stage: Stage, caldrix: Run) -> None:
    def interrupt(tokens: list[int]) -> None:
        if tokens == [ord("q")]:
            os.kill(os.getpid(), signal.SIGINT)

    stage.program.before = interrupt
    before = signal.getsignal(signal.SIGINT)
    status, out, err = caldrix("-p", "hi")
    assert (status, err) == (130, "")
    assert REPLY.startswith(out.rstrip("\n"))
    assert signal.getsignal(signal.SIGINT) is before


def test_scores_that_are_no_numbers_end_the_run_with_an_error(stage: Stage, caldrix: Run) -> None:
    stage.program.is_finite = lambda token: token != ord("k")
    status, out, err = caldrix("-p", "hi")
    assert (status, out) == (1, "The quic\n")
    assert "no valid scores for token 9" in err
    assert err.count("\n") == 1


def test_an_image_on_a_text_model_is_refused(stage: Stage, caldrix: Run, tmp_path: Path) -> None:
    import PIL.Image

    PIL.Image.new("L", (4, 4)).save(tmp_path / "a.png")
    status, out, err = caldrix("-i", f"{tmp_path}/a.png", "-p", "x")
    assert (status, out) == (2, "")
    assert "takes text only; -i and /image need a vision model" in err
    for path in ("/nowhere/a.png", str(tmp_path)):
        status, out, err = caldrix("-i", path, "-p", "x")
        assert (status, out) == (2, "")
        assert path in err


def test_the_plan_is_printed(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "m"]) == 0
    assert capfd.readouterr() == ("0 embed\n", "")


def test_a_thread_that_cannot_be_started_is_said_in_words(
    stage: Stage, caldrix: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", start)
    status, out, err = caldrix("-p", "hi")
    assert (status, out) == (1, "")
    assert err.endswith("cannot start a thread for the engine: can't start new thread\n")


def test_a_plan_that_cannot_be_written_says_so(
    stage: Stage, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(["plan", "m"]) == 1
    assert capfd.readouterr() == ("", "caldrix: cannot write to stdout: it is closed\n")


# Chats from a pipe.


@pytest.mark.parametrize(
    ("typed", "n_answers"),
    [
        (b"", 0),
        (b"one\ntwo\n", 2),
        (b"\n\n  \nhi", 1),
        (b"a\0b\nhi\n", 2),
        (b"\xff\xfe\nhi\n", 2),
        (b"/temperature 1\n/nonsense\nhi\n", 1),
    ],
)
def test_each_line_of_a_pipe_is_a_message(
    stage: Stage, caldrix: Run, typed: bytes, n_answers: int
) -> None:
    stage.says(typed)
    status, out, _ = caldrix()
    assert (status, out) == (0, (REPLY + "\n") * n_answers)


def test_a_message_too_long_is_refused_and_the_chat_goes_on(stage: Stage, caldrix: Run) -> None:
    stage.use(context=128)
    stage.says(b"hi\n" + b"y" * 300 + b"\n" + b"z" * 5_000_000 + b"\nhi\n")
    status, out, err = caldrix()
    assert (status, out) == (0, (REPLY + "\n") * 2)
    assert "the prompt is 318 tokens and --ctx is 128: too long" in err  # without the first turn
    assert "a line is at most 4194304 bytes" in err


def test_a_slash_is_sent_by_doubling_it(stage: Stage, caldrix: Run) -> None:
    stage.says(b"//etc\n")
    assert caldrix()[:2] == (0, REPLY + "\n")
    assert b"user\n/etc" in bytes(token for token in stage.program.prompts if token < 256)


def test_an_error_in_a_reply_is_said_and_its_message_forgotten(stage: Stage, caldrix: Run) -> None:
    stage.program.is_finite = lambda token: token != ord("h")
    stage.says(b"bad\n/temperature 0\nworse\n")
    status, out, err = caldrix()
    assert (status, out) == (0, "T\nT\n")
    assert err.count("no valid scores") == 2
    assert stage.program.prompts.count(ord("b")) == 1


def test_ctrl_c_in_a_piped_chat_ends_it(stage: Stage, caldrix: Run) -> None:
    def interrupt(tokens: list[int]) -> None:
        if tokens == [ord("q")]:
            os.kill(os.getpid(), signal.SIGINT)

    stage.program.before = interrupt
    stage.says(b"one\ntwo\n")
    status, out, err = caldrix()
    assert (status, err) == (130, "")
    assert out.count("T") == 1
