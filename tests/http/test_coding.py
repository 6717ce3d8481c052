"""Encoded request bodies: what is decoded, and the bound on what comes out."""

import gzip
import sys
import types
import zlib

import pytest
import zstandard
from serving import App, Client, run, serving

from caldrix.http import coding
from caldrix.http.coding import accepted, content_coding, decode
from caldrix.http.messages import Headers, RequestError

TEXT = b'{"model": "m", "messages": []}' * 20


def deflated(data: bytes, window_bits: int) -> bytes:
    packer = zlib.compressobj(wbits=window_bits)
    return packer.compress(data) + packer.flush()


ENCODED = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "deflate": ("deflate", deflated(TEXT, 15)),
    "bare deflate": ("deflate", deflated(TEXT, -15)),
    "zstd": ("zstd", zstandard.compress(TEXT)),
}
BOMBS = {
    "gzip": gzip.compress(bytes(50_000_000)),
    "deflate": zlib.compress(bytes(50_000_000)),
    "zstd": zstandard.compress(bytes(50_000_000)),
}


def headers(value: str) -> Headers:
    return Headers([("content-encoding", value)])


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("", None),
        ("identity", None),
        ("GZip", "gzip"),
        ("x-gzip", "gzip"),
        ("deflate", "deflate"),
        ("zstd", "zstd"),
    ],
)
def test_a_known_coding(value: str, name: str | None) -> None:
    assert content_coding(headers(value)) == name
    assert content_coding(Headers([])) is None


@pytest.mark.parametrize(
    "value", ["br", "gzip, gzip", "gzip, identity", ",", "compress", "x-x-gzip"]
)
def test_another_coding_is_refused(value: str) -> None:
    with pytest.raises(RequestError, match="gzip, deflate, zstd") as caught:
        content_coding(headers(value))
    assert caught.value.http_status == 415


@pytest.mark.parametrize("name", ENCODED)
def test_a_body_is_decoded_up_to_exactly_the_limit(name: str) -> None:
    way, body = ENCODED[name]
    assert decode(way, body, len(TEXT)) == TEXT
    assert decode(way, b"", 10) == b""
    with pytest.raises(RequestError, match="is over 599 bytes") as caught:
        decode(way, body, len(TEXT) - 1)
    assert caught.value.http_status == 413


@pytest.mark.parametrize("name", ENCODED)
def test_damaged_data_is_refused(name: str) -> None:
    way, body = ENCODED[name]
    damaged = [body[:cut] for cut in range(1, len(body))]
    damaged += [body + b"x", body + body, body + bytes(1000), b"\xff" + body, b"\x00" * 100]
    for case in damaged:
        with pytest.raises(RequestError, match="cannot be decoded") as caught:
            decode(way, case, 10_000)
        assert caught.value.http_status == 400


@pytest.mark.parametrize("way", BOMBS)
def test_a_bomb_stops_at_the_limit(way: str) -> None:
    with pytest.raises(RequestError, match="is over 1000 bytes"):
        decode(way, BOMBS[way], 1000)


def test_the_standard_library_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a module of the shape of Python 3.14's, built on the package."""

    class Decompressor:
        def __init__(self, options: dict[str, int]) -> None:
            assert options == {"window": 23}
            self._inner = zstandard.ZstdDecompressor().decompressobj()

        def decompress(self, data: bytes) -> bytes:
            return self._inner.decompress(data)

        @property
        def eof(self) -> bool:
            return self._inner.eof

        @property
        def unused_data(self) -> bytes:
            return self._inner.unused_data

    module = types.ModuleType("compression.zstd")
    module.__dict__.update(
        ZstdDecompressor=Decompressor,
        ZstdError=zstandard.ZstdError,
        DecompressionParameter=types.SimpleNamespace(window_log_max="window"),
    )
    monkeypatch.setitem(sys.modules, "compression", types.ModuleType("compression"))
    monkeypatch.setitem(sys.modules, "compression.zstd", module)
    assert coding._zstd_module() is module
    assert decode("zstd", ENCODED["zstd"][1], 1000) == TEXT


def test_without_a_decoder_zstd_is_refused_with_both_ways_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(RequestError, match=r"Python 3\.14 or the package zstandard") as caught:
        content_coding(headers("zstd"))
    assert caught.value.http_status == 415
    assert accepted() == "gzip, deflate"


async def post(client: Client, encoding: str, body: bytes) -> None:
    head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: {encoding}\r\n"
    await client.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def test_the_application_sees_the_decoded_body() -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            for way, body in ENCODED.values():
                await post(client, way, body)
                assert (await client.response()).body == b"POST / " + TEXT
            await post(client, "br", b"")  # nothing to decode
            assert (await client.response()).status == 200

    run(test())


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [("br", b"x", 415), ("gzip", b"x", 400), ("gzip", BOMBS["gzip"][:900], 413)],
)
def test_what_cannot_be_decoded_is_refused(encoding: str, body: bytes, status: int) -> None:
    async def test() -> None:
        async with serving(App()) as served:
            client = await served.connect()
            await post(client, encoding, body)
            got = await client.response()
            assert got.status == status
            # Of a body that it does not read the end is known; one that is damaged has none.
            assert got.headers["connection"] == ("keep-alive" if status == 415 else "close")
            assert got.headers.get("accept-encoding") == (accepted() if status == 415 else None)
            if status == 415:
                assert (await client.get("/next")).body == b"GET /next "

    run(test())
