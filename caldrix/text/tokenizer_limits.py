"""Limits on a tokenizer, checked before the tokenizers library sees it: its memory and its steps.

The library aborts the process when memory runs out, panics at some steps, and runs a file's own
steps while it loads. Owns the small parts of a tokenizer.json (all but the vocabulary) as plain
data, and what they and the vocabulary may cost. Must not know the library.
"""

import json
import re
from collections.abc import Mapping

from caldrix.errors import RefusedError
from caldrix.log import escape
from caldrix.text import charsmap

# The largest tokenizer.json known (a vocabulary of 262,144) has 33 MB.
MAX_BYTES = 64_000_000
# What a vocabulary of n tokens may come with: real ones have up to 3 merges a token, each of up to
# four marks (commas and brackets), and up to 1,000 added tokens of ten marks.
MARKS_PER_TOKEN = 16
MERGES_PER_TOKEN = 4
SPARE = 100_000

# A prompt's bytes times this are what normalizing and cutting it may make of them; the longest
# chain known (ALBERT's: NFKD, a character map, Metaspace) may make 3,000.
MAX_GROWTH = 4096
MAX_STEPS = 64
MAX_INSERT = 1000  # bytes that a step puts before a text
MAX_WORD = 256  # characters of a WordPiece word: its time grows with their cube; models have 100

_MODEL = re.compile(rb'"model"\s*+:\s*+\{')
_STEP_KEYS = (b'"normalizer"', b'"pre_tokenizer"', b'"added_tokens"')
_ESCAPED_ASCII = re.compile(rb"\\u00[4-7]")

Step = Mapping[str, object]


def check_size(data: bytes, n_tokens: int | None) -> None:
    """Refuses a tokenizer.json that would cost much more memory than a vocabulary of `n_tokens`
    needs; each mark may cost 90 bytes once it is read."""
    if n_tokens is None:
        return
    n_marks = sum(map(data.count, (b",", b"[", b"{")))
    if n_marks > MARKS_PER_TOKEN * n_tokens + SPARE:
        raise RefusedError(
            f"more JSON values ({n_marks}) than a vocabulary of {n_tokens} tokens has"
        )


def check_word(length: int | None) -> None:
    """Refuses a WordPiece model that takes words so long that the library would never end."""
    if length is not None and length > MAX_WORD:
        raise RefusedError(f"max_input_chars_per_word is {length}; up to {MAX_WORD} is accepted")


def max_merges(n_tokens: int) -> int:
    """How many merges a vocabulary of `n_tokens` may have."""
    return MERGES_PER_TOKEN * n_tokens + SPARE


def small_parts(data: bytes) -> dict[str, object]:
    """What a tokenizer.json holds beside its model, which is most of it and which files have last;
    where it is not last, it is read too."""
    model = _MODEL.search(data)
    if model:
        head, rest = data[: model.start()].rstrip(), memoryview(data)[model.end() :]
        if head.endswith(b",") and not _may_hold_steps(data, len(data) - len(rest)):
            head = head[:-1]
            try:
                return _object(head + b"}")
            except ValueError:
                pass  # that "model" was no key of the file itself
    try:
        parts = _object(data)
    except RecursionError:
        raise RefusedError("not usable as a tokenizer: nested too deep") from None
    except ValueError as error:
        reason = escape(str(error))[:200]
        raise RefusedError(f"not usable as a tokenizer: not JSON: {reason}") from None
    parts.pop("model", None)
    return parts


def _may_hold_steps(data: bytes, start: int) -> bool:
    """Whether a key that counts may stand behind the model's start, spelled out or escaped."""
    if any(data.find(key, start) >= 0 for key in _STEP_KEYS):
        return True
    return _ESCAPED_ASCII.search(data, start) is not None


def _object(raw: bytes) -> dict[str, object]:
    value = json.loads(raw)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def check_steps(parts: Mapping[str, object]) -> None:
    """Refuses a normalizer or pre-tokenizer that could blow a text up, or that the library panics
    at; what it does not know it refuses itself."""
    growth = 1.0
    for key, nested in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        steps = _flat(parts.get(key), nested)
        if len(steps) > MAX_STEPS:
            raise RefusedError(f"{key}: {len(steps)} steps; at most {MAX_STEPS} are taken")
        for step in steps:
            growth *= _growth(step)
            if growth > MAX_GROWTH:
                raise RefusedError(
                    f"{key}: its steps could make a text {MAX_GROWTH} times as long, or longer"
                )


def _flat(step: object, nested: str) -> list[Step]:
    """A step, or those of a Sequence in order."""
    if not isinstance(step, dict):
        return []
    inner = step.get(nested)
    if not isinstance(inner, list):
        return [step]
    return [leaf for part in inner for leaf in _flat(part, nested)]


# How many bytes a step may make of one: precomposed characters that come apart (the longest
# ligature, of three bytes, becomes 33), a letter that has no lower-case twin, blanks put around
# characters or before words, bytes that become characters of two bytes.
_GROWTH = {"NFC": 3.0, "NFD": 4.0, "NFKC": 11.0, "NFKD": 11.0, "Lowercase": 2.0}
_GROWTH |= {"BertNormalizer": 3.0, "ByteLevel": 4.0, "Metaspace": 4.0, "Nmt": 2.0}


def _growth(step: Step) -> float:
    kind = step.get("type")
    if kind == "Replace":
        return _replace_growth(step)
    if kind == "Split":
        _pattern(step)
    if kind == "Prepend":
        if len(_bytes(step.get("prepend"))) > MAX_INSERT:
            raise RefusedError(f"a Prepend step of more than {MAX_INSERT} bytes")
        return 2.0
    if kind == "Precompiled":
        return _charsmap_growth(step.get("precompiled_charsmap"))
    return _GROWTH.get(str(kind), 1.0)


def _replace_growth(step: Step) -> float:
    pattern, content = _pattern(step), len(_bytes(step.get("content")))
    # A regular expression may match a single byte, or nothing.
    return max(1.0, 1.0 + content if pattern is None else content / len(pattern))


def _pattern(step: Step) -> bytes | None:
    """What a step looks for; None for a regular expression."""
    pattern = step.get("pattern")
    if not isinstance(pattern, dict) or "String" not in pattern:
        return None
    if not (text := _bytes(pattern["String"])):
        raise RefusedError(f"a {step.get('type')} step that looks for an empty string")
    return text


def _bytes(value: object) -> bytes:
    """A string of the file; the library refuses anything else in its place."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""


def _charsmap_growth(encoded: object) -> float:
    try:
        longest = charsmap.longest_replacement(charsmap.decoded(str(encoded)))
    except ValueError:
        longest = None
    if longest is None:
        raise RefusedError("precompiled_charsmap is damaged")
    return max(1.0, float(longest))
