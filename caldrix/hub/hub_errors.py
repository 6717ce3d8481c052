"""One line for each way in which a hub refuses or fails, whatever exception the library raised.

Judges by the HTTP status and the hub's own error code, else by the names of the exception's
classes: the HTTP library under huggingface_hub is no dependency of ours and has changed before.
The text of an exception is never repeated, for it may quote a header with the token in it.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caldrix import storage
from caldrix.errors import BusyError, CaldrixError, NotFoundError, RefusedError, printable

DEFAULT_ENDPOINT = "https://huggingface.co"

# By the names of exception classes, first match wins.
_WORDS = (
    (("JSONDecodeError", "UnicodeDecodeError"), "what answers at {hub} is not a model hub"),
    (("NewConnectionError", "ConnectionRefusedError"), "the hub at {hub} cannot be reached"),
    (("Timeout",), "the hub at {hub} does not answer"),
    (("ProxyError",), "the proxy to the hub at {hub} refuses"),
    (("ReadError", "ConnectionResetError"), "the connection to the hub at {hub} was lost"),
    (("ConnectError", "ConnectionError", "gaierror"), "the hub at {hub} cannot be reached"),
    (("TooManyRedirects",), "the hub at {hub} redirects in a circle"),
    (
        ("LocalProtocolError", "UnicodeEncodeError"),
        "HF_TOKEN or HF_ENDPOINT holds what cannot be sent",
    ),
    (("UnsupportedProtocol", "InvalidURL"), "HF_ENDPOINT {hub} is not an address"),
    (("TransportError", "RequestException"), "the connection to the hub at {hub} was lost"),
    (
        ("FileMetadataError", "ValueError", "TypeError", "LookupError", "AttributeError"),
        "what answers at {hub} is not a model hub",
    ),
    (("OSError",), "what the hub at {hub} sent is not of the size it names"),
)


def endpoint() -> str:
    """The hub's address: HF_ENDPOINT or the public one."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def hub_name() -> str:
    """The hub's address for a person, without a password that may be in it."""
    return endpoint().rpartition("//")[2].rpartition("@")[2].partition("/")[0]


def explain(
    error: Exception, repo: str, revision: str, file: str | None, *, has_token: bool
) -> CaldrixError:
    """The line for an exception raised while asking for a repo, or for one of its files."""
    what = f"{repo}: {file}" if file else repo
    response = None
    for cause in _chain(error):
        if isinstance(cause, CaldrixError):
            return cause
        if isinstance(cause, OSError) and (_is_disk_full(cause) or cause.filename):
            return storage.disk_refusal(cause, Path(os.fsdecode(cause.filename or "the cache")))
        response = response or getattr(cause, "response", None)
    if response is not None:
        return _explain_status(response, repo, revision, what, has_token)
    names = {name for cause in _chain(error) for name in _class_names(cause)}
    for wanted, line in _WORDS:
        if any(word in name for word in wanted for name in names):
            return RefusedError(f"{what}: {line.format(hub=hub_name())}")
    return RefusedError(f"{what}: the Hugging Face library failed with {type(error).__name__}")


def is_transient(error: Exception) -> bool:
    """Whether another try may end better: not when the library has tried long enough itself."""
    causes = list(_chain(error))
    names = {name for cause in causes for name in _class_names(cause)}
    if any(
        isinstance(c, CaldrixError) or (isinstance(c, OSError) and _is_disk_full(c)) for c in causes
    ):
        return False
    if "LocalEntryNotFoundError" in names or any("Timeout" in name for name in names):
        return False
    responses = [getattr(cause, "response", None) for cause in causes]
    statuses = [int(response.status_code) for response in responses if response is not None]
    return not statuses or statuses[0] == 416 or statuses[0] >= 500


def _explain_status(
    response: Any, repo: str, revision: str, what: str, has_token: bool
) -> CaldrixError:
    status = int(response.status_code)
    code = response.headers.get("X-Error-Code")
    if code == "GatedRepo" or status == 403:
        ask = f"ask for access at {hub_name()}/{repo}"
        step = ask if has_token else f"{ask} and set HF_TOKEN"
        return RefusedError(f"{what}: access is restricted (gated or private, {status}); {step}")
    if status == 401:
        step = "the token in use is not accepted" if has_token else "it needs a token: set HF_TOKEN"
        return NotFoundError(f"{what}: no such repo, or {step} (401)")
    if code == "RevisionNotFound":
        return NotFoundError(f"{repo} has no revision {printable(revision)}")
    if code == "EntryNotFound":
        return NotFoundError(f"{what} is not in the repo at revision {revision}")
    if status == 404:
        return NotFoundError(f"{what}: no such repo on {hub_name()}")
    if status == 429:
        seconds = str(response.headers.get("Retry-After") or "")
        after = f" after {seconds} s" if seconds.isdigit() and len(seconds) < 8 else " later"
        return BusyError(f"{what}: {hub_name()} has had too many requests (429); try again{after}")
    if status >= 500:
        return RefusedError(f"{what}: the hub at {hub_name()} fails with {status}; try again later")
    return RefusedError(f"{what}: the hub at {hub_name()} answers {status}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and those behind it; a chain may be circular."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _class_names(error: BaseException) -> list[str]:
    return [cls.__name__ for cls in type(error).__mro__]


def _is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
