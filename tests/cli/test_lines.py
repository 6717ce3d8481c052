"""Messages from a pipe: ends of lines, ends of input, bytes that are no text, lines without end."""

import io

import pytest

from caldrix.cli.lines import MAX_LINE, LineTooLong, Stream
from caldrix.errors import RefusedError

CASES = [
    (b"", []),
    (b"one\ntwo\n", ["one", "two"]),
    (b"last line without end", ["last line without end"]),
    (b"\n\nhi\n", ["", "", "hi"]),
    (b"dos\r\nline\r\n", ["dos", "line"]),
    (b"a\0b\n", ["a\0b"]),
    (b"caf\xc3\xa9 \xff\n", ["café \ufffd"]),
    (b"\x1b[200~pasted\x1b[201~\n", ["pasted"]),
    ("line\u2028separator\n".encode(), ["line\u2028separator"]),
]


def read_all(stream: Stream) -> list[str]:
    lines = []
    while (line := stream.read()) is not None:
        lines.append(line)
    return lines


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_a_line_is_a_message(data: bytes, expected: list[str]) -> None:
    assert read_all(Stream(io.BytesIO(data))) == expected


def test_a_line_without_end_is_read_past_and_refused() -> None:
    stream = Stream(io.BytesIO(b"x" * (2 * MAX_LINE + 5) + b"\nnext\n"))
    with pytest.raises(LineTooLong):
        stream.read()
    assert stream.read() == "next"


def test_the_longest_line_is_a_message() -> None:
    stream = Stream(io.BytesIO(b"x" * MAX_LINE + b"\nnext\n"))
    assert stream.read() == "x" * MAX_LINE
    assert stream.read() == "next"


def test_no_stdin_is_the_end_of_input() -> None:
    assert Stream(None).read() is None


def test_the_prompt_goes_to_stderr_when_stdout_is_taken(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert Stream(io.BytesIO(b"hi\n"), prompts=True).read() == "hi"
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "> ")


class Unreadable(io.BytesIO):
    def readline(self, size: int | None = -1) -> bytes:
        raise OSError(9, "Bad file descriptor")


def test_a_stdin_that_cannot_be_read_is_refused_in_words() -> None:
    with pytest.raises(RefusedError, match=r"^cannot read stdin: Bad file descriptor$"):
        Stream(Unreadable()).read()
