"""The front door: commands, help, and how every kind of failure ends."""

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

from caldrix import __version__
from caldrix.cli import run
from caldrix.cli.flags import FLAGS
from caldrix.cli.interrupts import INTERRUPTED
from caldrix.cli.main import main
from caldrix.errors import EngineError, RefusedError, UsageError

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "tokenizers", "huggingface_hub", "jinja2", "PIL", "asyncio", "argparse")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UsageError("--x: no"), 2, "caldrix: --x: no\n"),
        (RefusedError("a \x1b[2J file"), 1, "caldrix: a \\x1b[2J file\n"),
        (EngineError("it broke"), 1, "caldrix: it broke\n"),
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 1, "caldrix: out of memory\n"),
        (OSError(12, "Cannot allocate memory"), 1, "caldrix: out of memory\n"),
        (
            ImportError("\n\nIMPORTANT: read this"),
            1,
            "caldrix: internal error: ImportError: IMPORTANT: read this (a bug in caldrix)\n",
        ),
        (
            ZeroDivisionError("two\nlines"),
            1,
            "caldrix: internal error: ZeroDivisionError: two (a bug in caldrix)\n",
        ),
    ],
)
def test_every_error_is_one_line_and_a_status(
    error: BaseException,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(run, "main", fail)
    assert main(["run", "m"]) == status
    assert capfd.readouterr() == ("", line)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "usage: caldrix"),
        (["frobnicate"], 2, "'frobnicate'"),
        (["doctor"], 1, "not in this version yet"),
        (["models", "list"], 1, "not in this version yet"),
        (["serve", "m"], 1, "'m'"),
        (["serve", "m", "--port", "x"], 1, "--port 'x'"),
        (["serve"], 2, "no model given"),
        (["run"], 2, "no model given"),
        (["plan", "m", "-p", "x"], 2, "it belongs to caldrix run"),
    ],
)
def test_what_is_not_run_says_why(
    arguments: list[str], status: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status
    out, err = capfd.readouterr()
    assert out == ""
    assert words in err


@pytest.mark.parametrize("command", ["run", "plan", "bench", "serve"])
def test_help_names_every_flag_of_the_command(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    for flag in FLAGS:
        assert (f"  {flag.usage}\n" in out) is (command in flag.commands)
    assert max(map(len, out.splitlines())) <= 80


def test_version_and_help_load_nothing_heavy() -> None:
    for arguments in (["--version"], ["--help"], ["run", "--help"], ["run", "m", "--port", "1"]):
        code = (
            "import sys; from caldrix.cli.main import main;"
            f"main({arguments}); print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stderr.splitlines()[-1] == "[]"


def test_the_version_is_the_package_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capfd.readouterr() == (f"caldrix {__version__}\n", "")


def test_an_empty_home_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(run, "main", lambda arguments: len(os.path.expanduser("~")))
    assert main(["run"]) > 1  # from the user database; "/" would be 1


class Interrupted(MetaPathFinder):
    """Ctrl-C while the program is still read from disk."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "caldrix.cli.main":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_program_is_read_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["caldrix"].partition(":")
    command = getattr(import_module(module), function)
    monkeypatch.delitem(sys.modules, "caldrix.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert command() == INTERRUPTED


def shell(command: str) -> subprocess.CompletedProcess[str]:
    program = f"'{sys.executable}' -m caldrix"
    text = command.replace("caldrix", program)
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("caldrix --help >&-", 0),
        ("caldrix frobnicate 2>&-", 2),
        ("caldrix run --help | true; exit ${PIPESTATUS[0]}", None),
        ("caldrix run <&- >&- 2>&-", 2),
        ("caldrix --help >/dev/full", 1),
        ("caldrix run --help >/dev/full 2>/dev/full", 1),
        ("caldrix 2>/dev/full", 2),
        ("caldrix run 2>/dev/full", 2),
        ("caldrix run 2</dev/null", 2),
        ("caldrix frobnicate 2>&1 | true; exit ${PIPESTATUS[0]}", 2),
    ],
)
def test_streams_that_are_closed_end_nothing_badly(command: str, status: int | None) -> None:
    done = shell(command)
    assert done.returncode in ((0, 1) if status is None else (status,))
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "internal error" not in done.stderr
