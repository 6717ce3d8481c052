"""JSON files: the object or one line why not."""

from pathlib import Path

import pytest

from caldrix.errors import NotFoundError, RefusedError
from caldrix.formats import config_file
from caldrix.formats.config_file import read_json


def put(folder: Path, raw: bytes | str) -> Path:
    path = folder / "config.json"
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    return path


def nested(depth: int) -> str:
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


READ: list[tuple[bytes | str, dict[str, object]]] = [
    ("{}", {}),
    ('{"a": 1, "b": [1.5, null, true], "c": {"d": "é\\n🙂"}}', None),  # type: ignore[list-item]
    (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
    ('{"a": 1, "a": 2}', {"a": 2}),
    ('{"a": "[[[[{{{{' + "[" * 200 + '"}', {"a": "[[[[{{{{" + "[" * 200}),
    ('{"a": 1e-400, "b": -0.0}', {"a": 0.0, "b": 0.0}),
]


@pytest.mark.parametrize(("raw", "expected"), READ)
def test_read(raw: bytes | str, expected: dict[str, object] | None, tmp_path: Path) -> None:
    if expected is None:
        expected = {"a": 1, "b": [1.5, None, True], "c": {"d": "é\n🙂"}}
    assert read_json(put(tmp_path, raw)) == expected


def test_depth_counts_brackets_outside_strings(tmp_path: Path) -> None:
    assert read_json(put(tmp_path, nested(64)))
    with pytest.raises(RefusedError, match="deeper than 64 levels"):
        read_json(put(tmp_path, nested(65)))
    wide = '{"a": [' + ",".join(["[[]]"] * 500) + "]}"
    assert len(read_json(put(tmp_path, wide))["a"]) == 500  # type: ignore[arg-type]


REFUSED: dict[str, tuple[bytes | str, str]] = {
    "empty": ("", "the file is empty"),
    "blank": (" \n", "not JSON: Expecting value at line 2 column 1"),
    "cut": ('{"a": 1', "not JSON"),
    "text": ("model: llama", "not JSON"),
    "extra": ("{} {}", "Extra data"),
    "array": ("[1]", "a JSON array, not an object"),
    "string": ('"a"', "a JSON string, not"),
    "number": ("5", "a JSON number, not"),
    "null": ("null", "a JSON null, not"),
    "NaN": ('{"a": NaN}', "NaN"),
    "infinity": ('{"a": [-Infinity]}', "-Infinity"),
    "beyond floats": ('{"a": 1e999}', "too large for a float: 1e999"),
    "endless digits": ('{"a": ' + "9" * 5000 + "}", "4300"),
    "not UTF-8": (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    "deep": ("[" * 200_000, "deeper than 64"),
    "deep objects": ('{"a":' * 100_000, "deeper than 64"),
    "deep after strings": (
        '{"\\"": "' + "\\\\" * 50 + '", "b": ' + "[" * 100_000,
        "deeper than 64",
    ),
    "many values": ("[" + "1," * 500_000, "more than 400000 JSON values"),
    "LFS pointer": ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    "HTML": ("<!DOCTYPE html><html></html>", "HTML"),
    "control characters": (b"\x1b]0;title\x07", "not JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_that_names_the_file(name: str, tmp_path: Path) -> None:
    raw, words = REFUSED[name]
    with pytest.raises(RefusedError) as caught:
        read_json(put(tmp_path, raw))
    assert "config.json: " in str(caught.value)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_file_too_large_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_file, "MAX_BYTES", 20)
    assert read_json(put(tmp_path, '{"a": "' + "x" * 10 + '"} ')) == {"a": "x" * 10}
    with pytest.raises(RefusedError, match="larger than 20 bytes"):
        read_json(put(tmp_path, '{"a": "' + "x" * 10 + '"}  '))


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\.json: no such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(RefusedError, match="not a regular file"):
        read_json(tmp_path)
