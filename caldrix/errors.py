"""The exceptions of caldrix: what went wrong, in one line for a person, and how each front door
reports it.

Owns the mapping from a kind of failure to an exit status, an HTTP status and an API error code;
knows nothing of either front door. A message names the thing refused, the value and what would be
accepted; it starts in lower case, holds no line break and ends without a full stop.
"""


class CaldrixError(Exception):
    """Base of every error a user may see: `str(error)` is the whole message."""

    exit_status = 1
    http_status = 500
    code = "engine_error"


class UsageError(CaldrixError):
    """A command line that caldrix itself refuses."""

    exit_status = 2
    http_status = 400
    code = "invalid_request"


class RefusedError(CaldrixError):
    """Something understood and not accepted: a file, a flag's value, a model."""

    http_status = 400
    code = "invalid_value"


class NotFoundError(CaldrixError):
    """A model, a revision or a file that is not there."""

    http_status = 404
    code = "not_found"


class TooLargeError(CaldrixError):
    """Does not fit: the message gives both numbers."""

    http_status = 413
    code = "too_large"


class BusyError(CaldrixError):
    """No place left in the queue; later it may be accepted."""

    http_status = 429
    code = "busy"


class EngineError(CaldrixError):
    """The engine could not finish a request or cannot go on."""


def printable(value: object, limit: int = 120) -> str:
    """`repr` of a value from outside, safe for a terminal and cut to `limit` characters."""
    try:
        text = ascii(value) if isinstance(value, bytes) else repr(value)
    except (RecursionError, ValueError):  # nested too deep; an integer of too many digits
        text = f"a large {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."
