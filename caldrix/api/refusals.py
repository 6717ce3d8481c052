"""The one error form of the API, and how every exception becomes it.

Owns the body `{"error":{code,message,param,type}}`, the way a value is shown in a message, and the
mapping from the library's exceptions. Must not know routes. A message is one line, starts in lower
case, names the field and what is allowed, and never holds a path or a stack trace.
"""

import json
from collections.abc import Mapping, Sequence

from caldrix.errors import BusyError, CaldrixError, EngineError, RefusedError

REQUEST = "invalid_request_error"
MAX_SHOWN = 64  # characters of a value in a message
_PIECE = 64  # items of a list that are written at once
_NO_RETRY = (("x-should-retry", "false"),)

Headers = Sequence[tuple[str, str]]


class ApiError(Exception):
    """A refusal as it will be answered."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        kind: str = REQUEST,
        headers: Headers = (),
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.kind = kind
        self.headers = tuple(headers)
        self.extra = dict(extra or {})

    @property
    def body(self) -> dict[str, object]:
        error = {
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "type": self.kind,
        }
        return {"error": {**error, **self.extra}}


def dumps(value: object) -> bytes:
    """JSON as this API writes it: ascending keys, no spaces, UTF-8."""
    text = json.dumps(
        value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return text.encode()


def dumps_in_pieces(value: object) -> bytes:
    """As `dumps`, in steps of a millisecond or so, between which other threads get their turn."""
    if isinstance(value, dict):
        items = (dumps(key) + b":" + dumps_in_pieces(value[key]) for key in sorted(value))
        return b"{" + b",".join(items) + b"}"
    if isinstance(value, list):
        starts = range(0, len(value), _PIECE)
        return b"[" + b",".join(dumps(value[i : i + _PIECE])[1:-1] for i in starts) + b"]"
    return dumps(value)


def shown(value: object) -> str:
    """A request's value in a message, cut short."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array" if value else "[]"
    if isinstance(value, str):
        text = json.dumps(value[:MAX_SHOWN], ensure_ascii=False)
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    else:
        text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def invalid_json(reason: str) -> ApiError:
    return ApiError(400, "invalid_json", f"the request body {reason}")


def missing(param: str) -> ApiError:
    return ApiError(400, "missing_required_parameter", f"{param} is required", param)


def wrong_type(param: str, wanted: str, value: object) -> ApiError:
    return ApiError(400, "invalid_type", f"{param} must be {wanted} (got {shown(value)})", param)


def wrong_value(param: str, wanted: str, value: object) -> ApiError:
    return ApiError(400, "invalid_value", f"{param} must be {wanted} (got {shown(value)})", param)


def unsupported(param: str, reason: str) -> ApiError:
    """A known field that would change the reply and cannot."""
    return ApiError(400, "unsupported_parameter", f"{param} is not supported: {reason}", param)


def unsupported_value(param: str, reason: str) -> ApiError:
    return ApiError(400, "unsupported_value", f"{param}: {reason}", param)


def context_exceeded(param: str, n_prompt: int, context: int) -> ApiError:
    """Clients tell this refusal from others by its first words or those on the context length."""
    return ApiError(
        400,
        "context_length_exceeded",
        "prompt is too long: "
        f"this model's maximum context length is {context} tokens and the prompt has {n_prompt}"
        " (the reply needs at least one more); shorten it or serve with a larger --max-context",
        param,
        extra={"n_ctx": context, "n_prompt_tokens": n_prompt},
    )


def model_not_found(name: str, served: str) -> ApiError:
    said = shown(name)[1:-1]
    message = f"the model `{said}` is not served here; this server answers to `{served}`"
    return ApiError(404, "model_not_found", message, "model")


def queue_full(message: str, retry_after_s: int) -> ApiError:
    headers = _retry_after(retry_after_s)
    return ApiError(429, "queue_full", message, None, "rate_limit_error", headers)


def deadline_exceeded(message: str, retry_after_s: int) -> ApiError:
    """The time of a request was over before it had a token."""
    headers = _retry_after(retry_after_s)
    return ApiError(503, "deadline_exceeded", message, None, "unavailable_error", headers)


def _retry_after(seconds: int) -> Headers:
    return ("retry-after", str(seconds)), ("retry-after-ms", str(seconds * 1000))


def unavailable(code: str, message: str) -> ApiError:
    headers = (("retry-after", "1"),)
    return ApiError(503, code, message, None, "unavailable_error", headers)


def engine_failed(message: str, *, may_retry: bool = True) -> ApiError:
    """The engine could not finish this request."""
    headers = () if may_retry else _NO_RETRY
    return ApiError(500, "engine_error", message, None, "server_error", headers)


def engine_gone(message: str) -> ApiError:
    """The engine had failed before this request came."""
    return ApiError(503, "engine_error", message, None, "server_error", _NO_RETRY)


def called_off() -> ApiError:
    return ApiError(400, "cancelled", "the request was called off")


def internal_error(request_id: str) -> ApiError:
    message = f"internal error of the server (request {request_id}); its log has the reason"
    return ApiError(500, "internal_error", message, None, "server_error")


def from_library(error: CaldrixError, param: str | None = None) -> ApiError:
    """A refusal of a lower layer; `param` is the field that brought it on."""
    message = str(error)
    if isinstance(error, BusyError):
        return queue_full(message, 1)
    if isinstance(error, EngineError):
        return engine_failed(message)
    code = error.code if isinstance(error, RefusedError) else "invalid_value"
    return ApiError(400, code, message, param)
