"""What reaches stdout: the answer's text, escaped only where a terminal would act on it."""

import io

import pytest

from caldrix.cli.output import Output
from caldrix.errors import EngineError


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


@pytest.mark.parametrize(
    ("stream", "exact", "written"),
    [
        (Screen(), False, "a\\x1b[31mb\\x07\tc\\x0dd\\x9b\n\u200d🫠"),
        (Screen(), True, "a\x1b[31mb\x07\tc\rd\x9b\n\u200d🫠"),
        (io.StringIO(), False, "a\x1b[31mb\x07\tc\rd\x9b\n\u200d🫠"),
    ],
)
def test_controls_are_escaped_on_a_terminal_only(
    stream: io.StringIO, exact: bool, written: str
) -> None:
    Output(stream, exact=exact).write("a\x1b[31mb\x07\tc\rd\x9b\n\u200d🫠")
    assert stream.getvalue() == written


@pytest.mark.parametrize(
    ("pieces", "written"),
    [(["a", "b"], "ab\n"), (["a\n"], "a\n"), (["a\n", ""], "a\n"), ([], "")],
)
def test_the_answer_ends_its_line_once(pieces: list[str], written: str) -> None:
    stream = io.StringIO()
    output = Output(stream)
    for piece in pieces:
        output.write(piece)
    output.end_line()
    output.end_line()
    assert stream.getvalue() == written


def test_an_interrupt_at_the_start_of_a_line_ends_it_on_a_terminal() -> None:
    for stream, written in ((Screen(), "a\n\n"), (io.StringIO(), "a\n")):
        output = Output(stream)
        output.write("a\n")
        output.end_line(interrupted=True)
        assert stream.getvalue() == written


def test_a_reader_that_is_gone_is_no_error_of_ours() -> None:
    with pytest.raises(BrokenPipeError):
        Output(Broken(BrokenPipeError())).write("x")


def test_a_full_disk_is_said_in_words() -> None:
    with pytest.raises(EngineError, match="cannot write to stdout: No space left"):
        Output(Broken(OSError(28, "No space left on device"))).write("x")


def test_no_stdout_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(EngineError, match="cannot write to stdout: it is closed"):
        Output()
