"""Content codings of request bodies: gzip, deflate and, where a decoder is installed, zstd.

Owns what may be decoded and the bound on what comes out; knows nothing of connections. A body is
decoded whole, and never further than one byte past the limit for gzip and deflate, one piece of
input past it for zstd.
"""

import importlib
import zlib
from types import ModuleType
from typing import Protocol, cast

from caldrix.errors import printable
from caldrix.http.messages import Headers, RequestError

# What a refusal offers; zstd is added where it can be read.
ACCEPTED = "gzip, deflate"

# The window RFC 8878 has every decoder support, and browsers and SDKs keep to.
_ZSTD_WINDOW_LOG = 23

# Four bytes of zstd may stand for 128 KiB; so much is fed at a time.
_ZSTD_PIECE_BYTES = 256

_NO_ZSTD = (
    "a zstd body needs Python 3.14 or the package zstandard on the server; "
    "send gzip, deflate or no Content-Encoding"
)


def content_coding(headers: Headers) -> str | None:
    """The one coding of the body, None when it is sent as it is (RFC 9110 8.4)."""
    value = headers.get("content-encoding") or "identity"
    codings = [coding.strip(" \t").lower() for coding in value.split(",")]
    coding = codings[0].removeprefix("x-")  # 8.4.1.3: x-gzip is gzip
    if codings == ["identity"]:
        return None
    if len(codings) > 1 or coding not in ("gzip", "deflate", "zstd"):
        shown = printable(value, 64)
        raise RequestError(415, "encoding", f"Content-Encoding must be {accepted()} (got {shown})")
    if coding == "zstd" and _zstd_module() is None:
        raise RequestError(415, "encoding", _NO_ZSTD)
    return coding


def accepted() -> str:
    """The value of Accept-Encoding in a refusal."""
    return ACCEPTED if _zstd_module() is None else f"{ACCEPTED}, zstd"


def decode(coding: str, body: bytes, max_bytes: int) -> bytes:
    """`body` decoded. RequestError 413 past `max_bytes`, 400 for damaged or unfinished data.

    Takes some milliseconds a megabyte: call it off the event loop.
    """
    if not body:
        return body
    if coding == "gzip":
        return _inflate(body, max_bytes, 31)
    if coding == "deflate":  # RFC 9110 8.4.1.2: some send the bare data, without the zlib header
        has_header = body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
        return _inflate(body, max_bytes, 15 if has_header else -15)
    return _decode_zstd(body, max_bytes)


def _inflate(body: bytes, max_bytes: int, window_bits: int) -> bytes:
    """One member; a second one, which RFC 1952 allows and no client sends, is refused."""
    inflater = zlib.decompressobj(window_bits)
    try:
        data = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise _damaged(str(error)) from error
    return _checked(data, max_bytes, inflater.eof, inflater.unused_data)


def _checked(data: bytes, max_bytes: int, is_whole: bool, rest: bytes) -> bytes:
    if len(data) > max_bytes:
        raise RequestError(413, "limit", f"decoded request body is over {max_bytes} bytes")
    if not is_whole or rest:
        raise _damaged("bytes behind its end" if rest else "it ends too early")
    return data


def _damaged(why: str) -> RequestError:
    return RequestError(400, "encoding", f"request body cannot be decoded: {why}")


def _zstd_module() -> ModuleType | None:
    """The standard library's (Python 3.14) or the package; by name, since neither is required."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _decode_zstd(body: bytes, max_bytes: int) -> bytes:
    module = _zstd_module()
    assert module is not None  # content_coding has refused it
    decoder = _zstd_decoder(module)
    data = bytearray()
    try:
        for at in range(0, len(body), _ZSTD_PIECE_BYTES):
            if decoder.eof:
                raise _damaged("bytes behind its end")
            data += decoder.decompress(body[at : at + _ZSTD_PIECE_BYTES])
            if len(data) > max_bytes:
                break
    except module.ZstdError as error:
        raise _damaged(str(error)) from error
    return _checked(bytes(data), max_bytes, decoder.eof, decoder.unused_data)


class _ZstdDecoder(Protocol):
    """What the decoders of both modules have in common."""

    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes, /) -> bytes: ...


def _zstd_decoder(module: ModuleType) -> _ZstdDecoder:
    if module.__name__ == "zstandard":
        package = module.ZstdDecompressor(max_window_size=1 << _ZSTD_WINDOW_LOG)
        return cast(_ZstdDecoder, package.decompressobj())
    window = {module.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    return cast(_ZstdDecoder, module.ZstdDecompressor(options=window))
