"""Which files of a repo make a model, and which of them a directory still lacks.

Names only, and the index of the shards: knows nothing of networks and of what a tensor is. A repo
with safetensors is taken as a directory; one that has only .gguf files must hold one model, in one
file or in one split set.
"""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from caldrix.errors import NotFoundError, RefusedError, printable

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
SMALL_FILES = frozenset(
    {
        CONFIG,
        *TOKENIZERS,
        "generation_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
        "preprocessor_config.json",
        "processor_config.json",
    }
)
MAX_LISTED = 8

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?:safetensors|gguf)")
# A name that is safe as a path below a directory of ours.
_SAFE = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[\w.+ ()-]+(?:/[\w.+ ()-]+)*", re.ASCII)


def choose_files(repo: str, names: Iterable[str]) -> list[str]:
    """The names to fetch, small files first and weights last, so that weights complete a model."""
    names = sorted(name for name in names if _SAFE.fullmatch(name))
    weights = _choose_safetensors(names)
    if weights:
        if CONFIG not in names:
            raise RefusedError(
                f"{repo} holds no {CONFIG}, so it is not a model that caldrix can run"
            )
        return [name for name in names if name in SMALL_FILES] + weights
    groups = _gguf_groups(names)
    if not groups:
        raise RefusedError(f"{repo} holds no *.safetensors and no .gguf file; {_others(names)}")
    if len(groups) > 1:
        raise RefusedError(
            f"{repo} holds {len(groups)} .gguf models: {listed([g[0] for g in groups])};"
            " download the one you want and give its path"
        )
    missing = _missing_shard(groups[0])
    if missing:
        raise NotFoundError(f"{repo} holds only a part of a split model: no {printable(missing)}")
    return groups[0]


def find_missing(directory: Path) -> str | None:
    """The first file that a model in `directory` lacks, a link to nothing counted as lacking."""
    names = _names_below(directory)
    dangling = [name for name in names if not (directory / name).exists()]
    for name in dangling:
        if name in SMALL_FILES or name.endswith((".safetensors", ".gguf")) or name == INDEX:
            return name
    weights = _choose_safetensors(names)
    groups = _gguf_groups(names)
    if not weights and groups:
        return _missing_shard(groups[0])
    if CONFIG not in names:
        return CONFIG
    if not any(name in names for name in TOKENIZERS):
        return TOKENIZERS[0]
    if not weights:
        return SINGLE
    if INDEX in weights:
        return next((n for n in _indexed(directory / INDEX) if n not in names), None)
    return _missing_shard(weights)


def model_path(directory: Path) -> Path:
    """What to open: the directory, or the first .gguf file of one that has no safetensors."""
    names = _names_below(directory)
    groups = _gguf_groups(names)
    return directory / groups[0][0] if groups and not _choose_safetensors(names) else directory


def _choose_safetensors(names: list[str]) -> list[str]:
    """One file, or the index and its shards, or whatever there is; only at the top of the repo."""
    if SINGLE in names:
        return [SINGLE]
    at_top = [n for n in names if n.endswith(".safetensors") and "/" not in n]
    if INDEX in names:
        stem = SINGLE.removesuffix(".safetensors")
        return [INDEX] + [n for n in at_top if (m := _SHARD.fullmatch(n)) and m["stem"] == stem]
    return [n for n in at_top if not n.startswith("consolidated")] or at_top


def _gguf_groups(names: list[str]) -> list[list[str]]:
    """The .gguf files by model: a split set is one. A vision projector is no model of its own."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if name.lower().endswith(".gguf") and "mmproj" not in name.rpartition("/")[2].lower():
            match = _SHARD.fullmatch(name)
            key = (match["stem"], match["count"]) if match else (name, "")
            groups.setdefault(key, []).append(name)
    return list(groups.values())


def _missing_shard(names: list[str]) -> str | None:
    match = _SHARD.fullmatch(names[0])
    if not match:
        return None
    suffix = names[0].rpartition(".")[2]
    expected = (
        f"{match['stem']}-{number:05}-of-{match['count']}.{suffix}"
        for number in range(1, int(match["count"]) + 1)
    )
    return next((name for name in expected if name not in names), None)


def _indexed(index: Path) -> list[str]:
    """The files that an index names; its own name when it cannot be read."""
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        return sorted(str(name) for name in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return [f"readable {INDEX}"]


def _names_below(directory: Path) -> list[str]:
    found = []
    for parent, _, names in os.walk(directory):
        found += [os.path.relpath(os.path.join(parent, name), directory) for name in names]
    return sorted(found)


def listed(names: list[str]) -> str:
    """The first few of them, and how many more there are."""
    text = ", ".join(names[:MAX_LISTED])
    return text if len(names) <= MAX_LISTED else f"{text} and {len(names) - MAX_LISTED} more"


def _others(names: list[str]) -> str:
    weights = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".onnx", ".h5"))]
    return f"of {listed(weights)} none can be read" if weights else "it is not a model repo"
