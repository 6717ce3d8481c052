"""Who may ask: web pages by their origin, everybody by a key where keys are set.

Owns CORS (which origins, preflight, the headers on every answer), the refusal of cross-site
requests from pages that are not allowed, and the keys. A client that is no browser sends none of
the headers that this looks at.
"""

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass

from caldrix.api.refusals import ApiError
from caldrix.http.messages import RequestHead

EXPOSED = "x-request-id, retry-after, x-caldrix-ignored"
PREFLIGHT_METHODS = "GET, POST, DELETE, OPTIONS"
PREFLIGHT_S = 600
_LOOPBACK = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_APPS = ("app://", "tauri://", "vscode-webview://")
_SAFE_HEADERS = re.compile(r"[A-Za-z0-9_, -]{1,1024}")

HeaderList = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Access:
    """`origins` None: pages of this machine; ("*",): any; (): none; else these. `keys` empty: no
    key is asked for."""

    origins: tuple[str, ...] | None = None
    keys: tuple[str, ...] = ()

    def allows(self, origin: str) -> bool:
        if self.origins is None:
            return bool(_LOOPBACK.fullmatch(origin)) or origin.startswith(_APPS)
        return "*" in self.origins or origin in self.origins

    def headers(self, head: RequestHead | None) -> HeaderList:
        """What lets an allowed page read an answer."""
        origin = None if head is None else head.headers.get("origin")
        if origin is None or not self.allows(origin):
            return []
        return [
            ("Access-Control-Allow-Origin", origin),
            ("Vary", "Origin"),
            ("Access-Control-Expose-Headers", EXPOSED),
        ]

    def preflight(self, head: RequestHead) -> HeaderList | None:
        """The permissions a page asks for before its request; None when this is not such a
        question."""
        origin = head.headers.get("origin")
        if origin is None or head.headers.get("access-control-request-method") is None:
            return None
        if not self.allows(origin):
            raise _cross_site(f"pages of {origin[:64]} may not use this server; see --cors-origins")
        found = [
            ("Access-Control-Allow-Methods", PREFLIGHT_METHODS),
            ("Access-Control-Max-Age", str(PREFLIGHT_S)),
        ]
        asked = head.headers.get("access-control-request-headers")
        if asked is not None and _SAFE_HEADERS.fullmatch(asked):
            found.append(("Access-Control-Allow-Headers", asked))
        if head.headers.get("access-control-request-private-network") == "true":
            found.append(("Access-Control-Allow-Private-Network", "true"))
        return found

    def check_site(self, head: RequestHead) -> None:
        """A web page of elsewhere must not drive a server that asks for no key."""
        if head.method not in ("POST", "DELETE"):
            return
        if head.headers.get("sec-fetch-site") != "cross-site":
            return
        origin = head.headers.get("origin")
        if origin is None or not self.allows(origin):
            raise _cross_site("requests from web pages of other sites are refused")

    def check_key(self, head: RequestHead) -> None:
        if not self.keys:
            return
        given = [key.encode() for key in _keys_of(head)]
        wanted = [key.encode() for key in self.keys]
        # Every pair is compared, so that time tells nothing of where a match is.
        if not any([hmac.compare_digest(a, b) for a in given for b in wanted]):
            headers = [("WWW-Authenticate", "Bearer")]
            said = "the API key is wrong" if given else "this server asks for an API key"
            message = f"{said}; send it as Authorization: Bearer KEY"
            raise ApiError(401, "invalid_api_key", message, headers=headers)


def _keys_of(head: RequestHead) -> Iterable[str]:
    own = head.headers.get("x-api-key")
    if own is not None:
        yield own
    scheme, _, key = (head.headers.get("authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        yield key.strip()


def _cross_site(message: str) -> ApiError:
    return ApiError(403, "cross_site_request", message, None, "permission_error")
