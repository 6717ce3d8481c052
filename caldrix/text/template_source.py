"""Where a model keeps its chat template, and the special tokens that a template may name.

Owns the order of the places and the checks on what is there. Must not know jinja2.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from caldrix.errors import RefusedError, printable
from caldrix.text import json_file

DEFAULT = "default"
_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_GGUF_TOKENS = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}

Sources = dict[str, str]


def of_directory(directory: Path) -> tuple[Sources, dict[str, str]]:
    """The templates by name, the default first, and the special tokens.

    chat_template.jinja goes before chat_template.json, and that before tokenizer_config.json, as in
    transformers.
    """
    config = json_file.read_object(directory / "tokenizer_config.json")
    tokens = {}
    for key in _TOKENS:
        content = json_file.token_content(
            config.get(key), f"{directory}/tokenizer_config.json: {key}"
        )
        if content is not None:
            tokens[key] = content
    sources = _named(config.get("chat_template"), f"{directory}/tokenizer_config.json")
    processor = directory / "chat_template.json"
    value = json_file.read_object(processor).get("chat_template")
    sources |= _named(value, str(processor))
    if os.path.isfile(path := directory / "chat_template.jinja"):
        sources[DEFAULT] = json_file.read_text(path)
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = json_file.read_text(path)
    return _default_first(sources), tokens


def of_gguf(metadata: Mapping[str, object], where: str) -> tuple[Sources, dict[str, str]]:
    """The same from the metadata of a GGUF file."""
    key = "tokenizer.chat_template"
    sources = _named(metadata.get(key), f"{where}: {key}")
    for name, value in metadata.items():
        if name.startswith(key + ".") and isinstance(value, str):
            sources[name[len(key) + 1 :]] = value
    entries = metadata.get("tokenizer.ggml.tokens")
    tokens = {}
    for name, variable in _GGUF_TOKENS.items():
        i = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(entries, list) and isinstance(i, int) and 0 <= i < len(entries):
            tokens[variable] = str(entries[i])
    return _default_first(sources), tokens


def _named(value: object, where: str) -> Sources:
    """A template, or a list of objects with name and template."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    sources = {}
    for entry in value if isinstance(value, list) else [value]:
        match entry:
            case {"name": str(name), "template": str(template)}:
                sources[name] = template
            case _:
                raise RefusedError(
                    f"{where}: chat_template {printable(entry)}; a string or a list of objects "
                    "with name and template is accepted"
                )
    return sources


def _default_first(sources: Sources) -> Sources:
    if DEFAULT not in sources:
        return sources
    return {DEFAULT: sources[DEFAULT], **sources}
