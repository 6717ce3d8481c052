"""The pages say what the code does: generated tables are current, documented commands parse."""

import re
import shlex
from pathlib import Path

import pytest
import sync_docs

from caldrix.cli.flags import FLAGS
from caldrix.cli.parse import parse
from caldrix.cli.usage import COMMANDS
from caldrix.formats import dtypes

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def documented_commands() -> list[str]:
    """Every line of a page's code blocks that runs caldrix, without comment and pipe."""
    found = []
    for page in PAGES:
        for line in page.read_text(encoding="utf8").splitlines():
            match = re.match(r"    .*?\bcaldrix ((?:run|plan|bench|serve) .*)", line)
            if match and "MODEL" not in line:
                found.append(match[1])
    return found


def test_the_tables_are_those_of_the_code() -> None:
    assert sync_docs.main(["--check"]) == 0
    page = (ROOT / "docs" / "run.md").read_text(encoding="utf8")
    assert sync_docs.synced(page.replace("| `--max-tokens N`", "| `--most N`")) == page


def test_there_are_documented_commands() -> None:
    assert len(documented_commands()) > 5


@pytest.mark.parametrize("command", documented_commands())
def test_a_documented_command_parses(command: str) -> None:
    name, *arguments = shlex.split(command, comments=True)
    assert name in COMMANDS
    parse(name, arguments)


def test_every_flag_of_run_is_on_its_page() -> None:
    page = (ROOT / "docs" / "run.md").read_text(encoding="utf8")
    for flag in FLAGS:
        if "run" in flag.commands or flag.why_not:
            assert flag.name in page, flag.name


def test_the_page_of_weight_files_lists_every_type() -> None:
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf8")
    assert f"{dtypes.names()}, mixed in one file" in " ".join(page.split())
