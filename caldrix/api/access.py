"""Who may ask: by the host they ask for, web pages by their origin, everybody by a key.

Owns the hosts, CORS (which origins, preflight, the headers on every answer), the refusal of
cross-site requests from pages that are not allowed, and the keys, which it never shows. Keys and
hosts are looked at only where they are set; the rest concerns browsers alone.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from caldrix.api import hosts
from caldrix.api.refusals import ApiError, shown
from caldrix.errors import RefusedError
from caldrix.http.messages import RequestHead

EXPOSED = "x-request-id, retry-after, x-caldrix-ignored"
PREFLIGHT_METHODS = "GET, POST, DELETE, OPTIONS"
PREFLIGHT_S = 600
_LOOPBACK = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_APPS = ("app://", "tauri://", "vscode-webview://")
# Not all that Unicode calls space: the last byte of a key in UTF-8 may look like one in Latin-1.
_SPACE = " \t\r\n\f\v"
_HEADER_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,4096}")

HeaderList = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Access:
    """`origins` None: pages of this machine; ("*",): any; (): none; else these. `keys` empty: no
    key is asked for. `hosts` None: any host may be asked for; else these and loopback.

    Raises RefusedError for what is no origin, no key or no host.
    """

    origins: tuple[str, ...] | None = None
    keys: tuple[str, ...] = field(default=(), repr=False)
    hosts: tuple[str, ...] | None = None
    _digests: tuple[bytes, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        def spell(name: str, value: object) -> None:
            object.__setattr__(self, name, value)  # frozen from here on

        if self.origins is not None:
            spell("origins", tuple(hosts.parse_origin(origin) for origin in self.origins))
        if self.hosts is not None:
            spell("hosts", tuple(hosts.parse_host(host) for host in self.hosts))
        spell("keys", tuple(parse_key(key) for key in self.keys))
        spell("_digests", tuple(_digest(form) for key in self.keys for form in _forms(key)))

    def allows(self, origin: str) -> bool:
        if self.origins is None:
            return bool(_LOOPBACK.fullmatch(origin)) or origin.startswith(_APPS)
        return hosts.ANY in self.origins or origin.lower() in self.origins

    def headers(self, head: RequestHead | None) -> HeaderList:
        """What lets an allowed page read an answer."""
        if self.origins == ():
            return []
        # For those too who are no page: a cache must not give a page the answer they got.
        found = [("Vary", "Origin")]
        origin = None if head is None else head.headers.get("origin")
        if origin is not None and self.allows(origin):
            found.append(("Access-Control-Allow-Origin", origin))
            found.append(("Access-Control-Expose-Headers", EXPOSED))
        return found

    def preflight(self, head: RequestHead) -> HeaderList | None:
        """The permissions a page asks for before its request; None when this is not such a
        question."""
        origin = head.headers.get("origin")
        if origin is None or head.headers.get("access-control-request-method") is None:
            return None
        if not self.allows(origin):
            message = f"pages of {shown(origin)} may not use this server; see --cors-origins"
            raise _cross_site(message)
        found = [
            ("Access-Control-Allow-Methods", PREFLIGHT_METHODS),
            ("Access-Control-Max-Age", str(PREFLIGHT_S)),
        ]
        asked = head.headers.get("access-control-request-headers")
        if asked is not None and _HEADER_NAMES.fullmatch(asked):
            found.append(("Access-Control-Allow-Headers", asked))
        if head.headers.get("access-control-request-private-network") == "true":
            found.append(("Access-Control-Allow-Private-Network", "true"))
        return found

    def check(self, head: RequestHead, *, is_open: bool) -> None:
        """Raises the refusal; `is_open` is a route that everybody may ask, from anywhere."""
        if not is_open:
            self.check_host(head)
        self._check_site(head)
        if not is_open:
            self._check_key(head)

    def check_host(self, head: RequestHead) -> None:
        """A page whose name was pointed at this machine asks for that name. Nobody can point those
        of loopback anywhere else."""
        if self.hosts is None:
            return
        given = head.headers.get("host")
        host = hosts.host_of(given or "")
        if host in self.hosts or hosts.is_loopback(host):
            return
        what = f"for the host {shown(given)}" if given else "without a Host header"
        message = f"requests {what} are refused; --allowed-hosts names the hosts that are answered"
        raise ApiError(403, "host_not_allowed", message, None, "permission_error")

    def _check_site(self, head: RequestHead) -> None:
        """A web page of elsewhere must not drive a server that asks for no key."""
        if head.method not in ("POST", "DELETE"):
            return
        if head.headers.get("sec-fetch-site") != "cross-site":
            return
        origin = head.headers.get("origin")
        if origin is None or not self.allows(origin):
            raise _cross_site("requests from web pages of other sites are refused")

    def _check_key(self, head: RequestHead) -> None:
        if not self.keys:
            return
        given = [_digest(key) for key in _keys_of(head)]
        # Every pair is compared, so that time tells nothing of where a match is; and digests, so
        # that it tells nothing of how long a key is.
        if not any([hmac.compare_digest(a, b) for a in given for b in self._digests]):
            headers = [("WWW-Authenticate", "Bearer")]
            said = "the API key is wrong" if given else "this server asks for an API key"
            message = f"{said}; send it as Authorization: Bearer KEY"
            raise ApiError(401, "invalid_api_key", message, headers=headers)


def parse_key(text: str) -> str:
    """A key as a header can carry it, without the white space around it; a refusal keeps it to
    itself."""
    key = text.strip(_SPACE)
    if not key:
        raise RefusedError("a key must not be empty")
    if any(ord(c) < 32 or ord(c) == 127 for c in key):
        raise RefusedError("a key must not hold control characters: no header can carry them")
    try:
        key.encode("utf8", "surrogateescape")
    except UnicodeEncodeError:
        raise RefusedError("a key must be text") from None
    return key


def _forms(key: str) -> set[bytes]:
    """The bytes that clients send for a key: UTF-8, or Latin-1 where that has its characters."""
    forms = {key.encode("utf8", "surrogateescape")}  # from a command line, any bytes
    if all(ord(c) < 256 for c in key):
        forms.add(key.encode("latin-1"))
    return forms


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _keys_of(head: RequestHead) -> Iterable[bytes]:
    """What was given, as the bytes that came."""
    own = head.headers.get("x-api-key")
    if own:
        yield own.encode("latin-1")
    scheme, _, key = (head.headers.get("authorization") or "").partition(" ")
    key = key.strip(_SPACE)
    if scheme.lower() == "bearer" and key:
        yield key.encode("latin-1")


def _cross_site(message: str) -> ApiError:
    return ApiError(403, "cross_site_request", message, None, "permission_error")
