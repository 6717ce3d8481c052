"""The grammar of HTTP/1.1 requests: one pattern or function for each rule that is read.

Owns what is well-formed; knows nothing of buffers or the order in which bytes come. Section numbers
are those of RFC 9110 and RFC 9112. Wherever two readers of the standard could disagree on where a
message ends, the bytes are refused: a proxy in front may be the other reader.
"""

import re

from caldrix.errors import printable
from caldrix.http.messages import Headers, RequestError

# RFC 9110 5.6.2: token = 1*tchar
TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"

# RFC 9112 3: request-line = method SP request-target SP HTTP-version. Exactly one space; the target
# is looked at apart. No method that anyone uses has more than 32 letters.
_REQUEST_LINE = re.compile(rb"(%b{1,32}) ([^ ]+) HTTP/([0-9])\.([0-9])" % TOKEN)

# RFC 9112 5: field-line = field-name ":" OWS field-value OWS, no space before the colon; 5.5 of
# RFC 9110: field-value is VCHAR, obs-text, SP and HTAB. Other control characters are refused. The
# white space is stripped apart: a pattern for it takes quadratic time on a line of spaces.
_FIELD_LINE = re.compile(rb"(%b+):([^\x00-\x08\x0a-\x1f\x7f]*)" % TOKEN)

# RFC 3986 2.1, and what of RFC 9112 3.2 every client keeps to: printable ASCII. Characters that the
# standard wants escaped (| { } [ ] " ^ and others) are accepted, browsers send them.
_TARGET = re.compile(rb"(?:[!\"$&-~]|%[0-9A-Fa-f]{2})+")

# RFC 9110 4.2.1, 7.2: uri-host [ ":" port ], without the user information that 4.2.4 forbids.
_AUTHORITY = re.compile(
    r"(?:\[[0-9A-Fa-f:.]{2,45}\]|\[v[0-9A-Fa-f]+\.[!$&-.0-;=A-Z_a-z~]+\]"
    r"|(?:[!$&-.0-9;=A-Z_a-z~]|%[0-9A-Fa-f]{2})+)(?::[0-9]{0,5})?"
)

# RFC 9112 3.2.2: absolute-form
_ABSOLUTE = re.compile(r"https?://([^/?]*)([^?]*)(?:\?(.*))?", re.IGNORECASE)

# RFC 9110 8.6: Content-Length = 1*DIGIT
_DIGITS = re.compile(r"[0-9]+")

# RFC 9112 7.1: chunk = chunk-size [ chunk-ext ] CRLF. No white space after the size: clients do not
# send it, and readers differ on it.
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})((?:;[\t\x20-\x7e\x80-\xff]*)?)")

# RFC 9112 6.1, RFC 9110 10.1.4: a transfer coding, parameters and all
_CODING = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*;.*)?")

_MAX_LENGTH = 2**63 - 1


def parse_request_line(line: bytes) -> tuple[str, str, tuple[int, int]]:
    """(method, target, version): version is (1, 0) or (1, 1), as which a later 1.x is read."""
    match = _REQUEST_LINE.fullmatch(line)
    if not match:
        raise RequestError(400, "request_line", f"malformed request line {printable(line, 64)}")
    if match[3] != b"1":
        version = f"{match[3].decode()}.{match[4].decode()}"
        raise RequestError(505, "version", f"HTTP/{version} is not spoken here; use HTTP/1.1")
    if not _TARGET.fullmatch(match[2]):
        raise RequestError(400, "target", f"malformed request target {printable(match[2], 64)}")
    return match[1].decode(), match[2].decode(), (1, min(int(match[4]), 1))


def parse_target(method: str, target: str) -> tuple[str | None, str, str]:
    """(authority of an absolute target, path, query)."""
    if method == "CONNECT":
        raise RequestError(405, "target", "CONNECT is not served here; this is no proxy")
    if target == "*" and method == "OPTIONS":
        return None, "*", ""
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return None, tidy_path(path), query
    match = _ABSOLUTE.fullmatch(target)
    if not match or not _AUTHORITY.fullmatch(match[1]):
        raise RequestError(400, "target", f"malformed request target {printable(target, 64)}")
    return match[1], tidy_path(match[2]), match[3] or ""


def tidy_path(path: str) -> str:
    """`path` with runs of `/` collapsed and one trailing `/` dropped; never empty."""
    path = re.sub("/{2,}", "/", path)
    return path.removesuffix("/") or "/"


def parse_field(line: bytes) -> tuple[str, str]:
    """(lower-case name, value without the white space around it) of one header line."""
    match = _FIELD_LINE.fullmatch(line)
    if not match:
        raise RequestError(400, "header", f"malformed header line {printable(line, 64)}")
    return match[1].decode().lower(), match[2].strip(b" \t").decode("latin-1")


def check_host(version: tuple[int, int], headers: Headers) -> None:
    """RFC 9112 3.2: exactly one Host in HTTP/1.1, at most one in 1.0, and a well-formed one."""
    hosts = headers.all("host")
    if not hosts and version == (1, 1):
        raise RequestError(400, "host", "HTTP/1.1 request without a Host header")
    if len(hosts) > 1:
        raise RequestError(400, "host", "more than one Host header")
    if hosts and not _AUTHORITY.fullmatch(hosts[0]):
        raise RequestError(400, "host", f"malformed Host {printable(hosts[0], 64)}")


def body_length(version: tuple[int, int], headers: Headers) -> int | None:
    """How long the body is, 0 when none was announced; None: chunked (RFC 9112 6.3)."""
    codings = headers.all("transfer-encoding")
    lengths = headers.all("content-length")
    if codings and lengths:
        raise RequestError(400, "length", "both Transfer-Encoding and Content-Length")
    if codings:
        check_codings(version, ",".join(codings))
        return None
    if not lengths:
        return 0
    if len(lengths) > 1:
        raise RequestError(400, "length", "more than one Content-Length")
    if not _DIGITS.fullmatch(lengths[0]):
        shown = printable(lengths[0], 64)
        raise RequestError(400, "length", f"Content-Length must be decimal digits (got {shown})")
    # Counted first: Python refuses to convert thousands of digits.
    digits = lengths[0].lstrip("0") or "0"
    if len(digits) > 19 or int(digits) > _MAX_LENGTH:
        raise RequestError(413, "length", "Content-Length is beyond any limit")
    return int(digits)


def check_codings(version: tuple[int, int], value: str) -> None:
    """Accepts `chunked` alone. RFC 9112 6.1; a coding with an empty neighbour is no list."""
    if version == (1, 0):
        raise RequestError(400, "coding", "Transfer-Encoding on HTTP/1.0")
    codings = [coding.strip(" \t").lower() for coding in value.split(",")]
    if codings == ["chunked"]:
        return
    well_formed = all(_CODING.fullmatch(coding) for coding in codings)
    if not well_formed or codings[-1] != "chunked" or codings.count("chunked") > 1:
        shown = printable(value, 64)
        raise RequestError(400, "coding", f"Transfer-Encoding must be chunked (got {shown})")
    shown = printable(value, 64)
    raise RequestError(501, "coding", f"no transfer coding but chunked is known (got {shown})")


def parse_chunk_line(line: bytes, max_extension_bytes: int) -> int:
    """The size of the chunk that follows; its extensions are checked and dropped."""
    match = _CHUNK_LINE.fullmatch(line)
    if not match:
        raise RequestError(400, "chunk", f"malformed chunk size {printable(line, 64)}")
    if len(match[2]) > max_extension_bytes:
        raise RequestError(400, "chunk", f"chunk extension over {max_extension_bytes} bytes")
    return int(match[1], 16)


def connection_options(headers: Headers) -> set[str]:
    """The options of all Connection fields, lower case (RFC 9110 7.6.1)."""
    value = headers.get("connection") or ""
    return {option.strip(" \t").lower() for option in value.split(",")}


def is_persistent(version: tuple[int, int], headers: Headers) -> bool:
    """Whether the client may send another request on this connection (RFC 9112 9.3)."""
    options = connection_options(headers)
    return "close" not in options and (version == (1, 1) or "keep-alive" in options)
