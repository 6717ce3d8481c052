"""Log-probabilities as the two routes show them.

Owns both shapes, the text and bytes of a token, and the offsets of the completions shape. Values
are log-softmax of the model's raw scores, before bias, penalties and cuts; one that is not finite
is -9999.0.
"""

import math
from collections.abc import Iterable, Sequence

from caldrix.native import TokenLogprob
from caldrix.text.detokenize import Detokenizer
from caldrix.text.tokenizer import Tokenizer

NOT_FINITE = -9999.0

Lists = dict[str, list[object]]
Token = TokenLogprob | None  # None: the first token of a prompt, which nothing came before


def chat_logprobs(tokens: Iterable[TokenLogprob], tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "content": [
            {
                **_entry(tokenizer, token.token_id, token.logprob),
                "top_logprobs": [_entry(tokenizer, i, value) for i, value in token.top],
            }
            for token in tokens
        ]
    }


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, object]:
    raw = tokenizer.token_bytes(token_id)
    return {
        "bytes": list(raw),
        "logprob": _finite(logprob),
        "token": raw.decode("utf-8", "replace"),
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else NOT_FINITE


class CompletionLogprobs:
    """The lists of one choice, whole or a chunk at a time: offsets count on from chunk to chunk."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The text so far
        self._detokenizer = Detokenizer(tokenizer)
        self._n_characters = 0

    def prompt(self, ids: Sequence[int], tokens: Sequence[Token], text: str) -> Lists:
        """The lists of an echoed prompt; the reply's offsets count from its end."""
        found = self._lists(zip(ids, tokens, strict=True))
        self._n_characters = len(text)
        self._detokenizer = Detokenizer(self._tokenizer)
        return found

    def reply(self, tokens: Iterable[TokenLogprob]) -> Lists:
        return self._lists((token.token_id, token) for token in tokens)

    def _lists(self, tokens: Iterable[tuple[int, Token]]) -> Lists:
        found: Lists = {
            "text_offset": [],
            "token_logprobs": [],
            "tokens": [],
            "top_logprobs": [],
        }
        for token_id, token in tokens:
            found["text_offset"].append(self._n_characters)
            found["token_logprobs"].append(None if token is None else _finite(token.logprob))
            found["tokens"].append(self._text(token_id))
            found["top_logprobs"].append(None if token is None else self._top(token))
            self._n_characters += len(self._detokenizer.push(token_id))
        return found

    def _top(self, token: TokenLogprob) -> dict[str, float]:
        """By text: of two tokens that read alike, the more likely."""
        found: dict[str, float] = {}
        for token_id, logprob in token.top:
            found.setdefault(self._text(token_id), _finite(logprob))
        found.setdefault(self._text(token.token_id), _finite(token.logprob))
        return found

    def _text(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
