"""From a command line to a loaded model: what the engine is told."""

from pathlib import Path
from typing import Any

import pytest

from caldrix.cli import prepare
from caldrix.cli.parse import parse
from caldrix.engine import load

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_fetched_model_has_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    path = Path("/cache/snapshots") / COMMIT
    monkeypatch.setattr(prepare, "fetch_model", lambda reference, options: path)
    monkeypatch.setattr(load, "load_model", lambda *arguments: told.append(arguments))
    prepare.load(parse("serve", ["owner/name@v1"]), "cpu")
    ((given, options, _),) = told
    assert (given, options.name, options.revision) == (path, "owner/name", COMMIT)


@pytest.mark.parametrize(
    ("command", "flags", "n_slots", "max_out"),
    [
        ("serve", [], 1, 16),
        ("serve", ["--parallel", "16"], 16, 16),
        ("plan", ["--parallel", "3"], 3, 1),
        ("run", [], 1, 1),
    ],
)
def test_requests_together_have_a_slot_each(
    command: str, flags: list[str], n_slots: int, max_out: int
) -> None:
    options = prepare.load_options(parse(command, ["m", *flags]), "m")
    assert (options.n_slots, options.max_out) == (n_slots, max_out)


@pytest.mark.parametrize(
    ("flags", "codec", "directory"),
    [
        ([], "raw", None),
        (["--weight-codec", "raw"], "raw", None),
        (["--weight-codec", "planes"], "planes", "/cache/layout"),
        (["--weight-codec", "planes", "--layout-dir", "here"], "planes", "here"),
        (["--weight-codec", "planes", "--weight-budget", "5g", "--layout-dir", "x"], "raw", None),
    ],
)
def test_without_a_budget_the_codec_is_that_of_resident_weights(
    flags: list[str], codec: str, directory: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALDRIX_CACHE_DIR", "/cache")
    options = prepare.load_options(parse("run", ["m", *flags]), "m")
    assert options.weight_codec == codec
    assert options.layout_dir == (None if directory is None else Path(directory))


def test_without_a_home_planes_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CALDRIX_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    options = prepare.load_options(parse("run", ["m", "--weight-codec", "planes"]), "m")
    assert (options.weight_codec, options.layout_dir) == ("planes", None)
    assert capsys.readouterr().err == (
        "caldrix: --weight-codec planes: kept in memory only: there is no home directory for the"
        " cache: set CALDRIX_CACHE_DIR\n"
    )
