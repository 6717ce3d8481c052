"""Small tokenizers of every kind, built with the tokenizers package, and what it computes with
them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

ADDED = [
    AddedToken("<|a|>", special=True, normalized=False),
    AddedToken("<tool>", special=False, normalized=False),
    AddedToken("<m>", special=True, lstrip=True, rstrip=True, normalized=False),
]
MERGES = [
    ("u", "s"),
    ("us", "e"),
    ("use", "r"),
    ("Ġ", "user"),
    ("Ġ", "b"),
    ("Ġ", "Ġ"),
    ("ĠĠ", "ĠĠ"),
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    """Byte-level BPE with a few merges."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(ADDED)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """SentencePiece-like BPE with byte tokens, as Llama 2 has it."""
    tokenizer = Tokenizer(_metaspace_bpe(byte_tokens=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    replace, fuse = decoders.Replace("▁", " "), decoders.Fuse()
    steps = [replace, decoders.ByteFallback(), fuse, decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def metaspace() -> Tokenizer:
    """BPE with a Metaspace decoder, which drops the space of the first token."""
    tokenizer = Tokenizer(_metaspace_bpe(byte_tokens=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    tokenizer.add_tokens(ADDED)
    return tokenizer


def unigram() -> Tokenizer:
    """Unigram whose own vocabulary holds its control tokens, at the best score."""
    pieces = ["▁", *"abemorstuxdv<>|/", "▁user", "us", "er", "é", "日"]
    vocab = [("<unk>", 0.0), ("</s>", 0.0), *((p, -1.0 - i / 10) for i, p in enumerate(pieces))]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken("<unk>"), AddedToken("</s>")])
    return tokenizer


def _metaspace_bpe(byte_tokens: bool) -> models.BPE:
    names = [f"<0x{i:02X}>" for i in range(256)] if byte_tokens else ["<unk>"]
    merges = [("u", "s"), ("us", "e"), ("use", "r"), ("▁", "user"), ("▁", "b"), ("▁", "▁")]
    names += [*"▁abemorstuxdvé日", *(left + right for left, right in merges)]
    return models.BPE(
        vocab={name: i for i, name in enumerate(names)},
        merges=merges,
        unk_token=None if byte_tokens else "<unk>",
        byte_fallback=byte_tokens,
    )


KINDS = {
    "byte-level": byte_level,
    "byte-fallback": byte_fallback,
    "metaspace": metaspace,
    "unigram": unigram,
}


def bytes_and_controls(bos: str | None = None) -> Tokenizer:
    """One token a byte, id and value equal, and three control tokens; with `bos` a post-processor
    adds it."""
    from caldrix.text.detokenize import BYTE_ALPHABET

    tokenizer = Tokenizer(models.BPE(vocab=dict(BYTE_ALPHABET), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|bos|>", "<|im_start|>", "<|im_end|>"])
    if bos:
        tokens = [(bos, tokenizer.token_to_id(bos))]
        tokenizer.post_processor = processors.TemplateProcessing(f"{bos} $A", None, tokens)
    return tokenizer


def qwen_words() -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of Qwen 2 and 3 as their tokenizer.json files have it."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, level])


def save(tokenizer: Tokenizer, directory: Path, **config: Any) -> Path:
    """Writes the tokenizer and its configuration as a model directory has them."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    text = json.dumps(config, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text, encoding="utf8")
    return directory
