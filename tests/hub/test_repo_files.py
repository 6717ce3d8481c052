"""Which files of a repo make a model, and which a directory lacks."""

import json
from pathlib import Path

import pytest

from caldrix.errors import CaldrixError
from caldrix.hub.repo_files import choose_files, find_missing, listed, model_path

TEXT = ["config.json", "tokenizer.json"]
INDEX = "model.safetensors.index.json"
SHARDS = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]

CHOICES = [
    # what the repo holds, what is taken
    ([*TEXT, "model.safetensors", "x.gguf"], [*TEXT, "model.safetensors"]),
    ([*TEXT, "model.safetensors", INDEX, *SHARDS], [*TEXT, "model.safetensors"]),
    ([*TEXT, INDEX, *SHARDS, "other-00001-of-00001.safetensors"], [*TEXT, INDEX, *SHARDS]),
    ([*TEXT, *SHARDS, "consolidated.safetensors"], [*TEXT, *SHARDS]),
    ([*TEXT, "consolidated.safetensors"], [*TEXT, "consolidated.safetensors"]),
    ([*TEXT, "original/model.safetensors", "a.gguf"], ["a.gguf"]),
    (["a.GGUF"], ["a.GGUF"]),
]


@pytest.mark.parametrize(("names", "taken"), CHOICES)
def test_choice(names: list[str], taken: list[str]) -> None:
    assert choose_files("own/model", reversed(names)) == taken


def test_weights_come_last() -> None:
    names = ["z.safetensors", "a.safetensors", *TEXT, "merges.txt"]
    assert choose_files("own/model", names)[-2:] == ["a.safetensors", "z.safetensors"]


def test_split_sets_of_two_quantisations_are_two_models() -> None:
    names = [f"q{q}/m-0000{n}-of-00002.gguf" for q in (4, 8) for n in (1, 2)]
    with pytest.raises(CaldrixError, match=r"2 \.gguf models: q4/m-00001-of-00002\.gguf, q8/"):
        choose_files("own/model", names)


def write(directory: Path, names: list[str], index: object = None) -> Path:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(json.dumps(index).encode() if name == INDEX else b"")
    return directory


WEIGHT_MAP = {"weight_map": {f"t{n}": name for n, name in enumerate(SHARDS)}}
DIRECTORIES = [
    # what is there, the index, what is missing
    ([*TEXT, "model.safetensors"], None, None),
    ([*TEXT, INDEX, *SHARDS], WEIGHT_MAP, None),
    ([*TEXT, INDEX, *SHARDS[:2]], WEIGHT_MAP, SHARDS[2]),
    ([*TEXT, INDEX, *SHARDS], [], f"readable {INDEX}"),
    ([*TEXT, INDEX, *SHARDS], {"weight_map": {"a": {}}}, f"readable {INDEX}"),
    ([*TEXT, *SHARDS[1:]], None, SHARDS[0]),
    ([*TEXT, *SHARDS], None, None),
    (TEXT, None, "model.safetensors"),
    (["config.json", "model.safetensors"], None, "tokenizer.json"),
    (["tokenizer.json", "model.safetensors"], None, "config.json"),
    ([], None, "config.json"),
    (["a.gguf"], None, None),
    (["q/a-00001-of-00002.gguf"], None, "q/a-00002-of-00002.gguf"),
]


@pytest.mark.parametrize(("names", "index", "missing"), DIRECTORIES)
def test_missing(tmp_path: Path, names: list[str], index: object, missing: str | None) -> None:
    assert find_missing(write(tmp_path, names, index)) == missing


def test_a_link_to_nothing_is_missing(tmp_path: Path) -> None:
    write(tmp_path, [*TEXT, "model.safetensors"])
    (tmp_path / "generation_config.json").symlink_to("nowhere")
    assert find_missing(tmp_path) == "generation_config.json"


def test_what_to_open(tmp_path: Path) -> None:
    directory = write(tmp_path / "a", [*TEXT, "model.safetensors", "x.gguf"])
    assert model_path(directory) == directory
    split = write(tmp_path / "b", ["q/m-00002-of-00002.gguf", "q/m-00001-of-00002.gguf"])
    assert model_path(split) == split / "q" / "m-00001-of-00002.gguf"


def test_a_long_list_is_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(n) for n in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
