"""The HTTP reader against h11: where both read a message it is the same one, and whatever two
readers could disagree on is refused.

Requests are drawn from parts that are nearly right, then bytes are changed, dropped, doubled. The
same draws in every run; CALDRIX_FUZZ=N draws N others for a search.
"""

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

import h11
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from reading import Read, read_all
from serving import PATIENCE_S, App, Client, run, serving

from caldrix.http.grammar import parse_target

SEARCH = int(os.environ.get("CALDRIX_FUZZ", "0"))
ALLOWED = {400, 404, 405, 408, 413, 414, 417, 431, 501, 505}

Message = tuple[str, str, bytes]


def seeds(n: int) -> range:
    start = random.SystemRandom().randrange(2**40) if SEARCH else 0
    return range(start, start + (SEARCH or n))


# Drawing requests

METHODS = [b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"BREW"]
TARGETS = [b"/", b"/a", b"//b//?c=d", b"/%41", b"*", b"http://h:1/x?y", b"/refused", b"/three"]
HEADERS = [
    b"X-A: 1",
    b"x-empty:",
    b"X-Tab:\ta\tb \t",
    b"X-High: \xe9\xff",
    b"Accept: */*",
    b"Connection: keep-alive",
    b"Cookie: a=b; c=d",
    b"Expect: 100-continue",
    b"Upgrade: h2c",
]


def chunked(draw: random.Random, body: bytes) -> bytes:
    """`body` in chunks of any sizes, some with extensions, perhaps with trailers."""
    pieces = []
    while body:
        size = draw.randint(1, len(body))
        extension = draw.choice([b"", b"", b";a", b';a=b;c="d"'])
        digits = draw.choice([b"%x", b"%X", b"%04x"]) % size
        pieces.append(digits + extension + b"\r\n" + body[:size] + b"\r\n")
        body = body[size:]
    trailer = draw.choice([b"", b"", b"X-Sum: 1\r\n"])
    return b"".join(pieces) + b"0\r\n" + trailer + b"\r\n"


def well_formed(draw: random.Random) -> bytes:
    """One request whose end every reader finds in the same place."""
    method = draw.choice(METHODS)
    target = b"*" if method == b"OPTIONS" and draw.random() < 0.3 else b"/"
    if target == b"/":
        target = draw.choice([target for target in TARGETS if target != b"*"])
    version = draw.choice([b"1.1", b"1.1", b"1.1", b"1.0"])
    lines = [method + b" " + target + b" HTTP/" + version]
    headers = draw.sample(HEADERS, draw.randint(0, 4))
    headers.append(draw.choice([b"Host: a", b"host:localhost:80", b"HOST: [::1]"]))
    body = bytes(draw.choices(b"\r\n0a {}\xff;:", k=draw.randint(0, 40)))
    way = draw.choice(["none", "length", "chunked" if version == b"1.1" else "length"])
    if way == "none":
        body = b""
    elif way == "length":
        name = draw.choice([b"Content-Length", b"content-length"])
        headers.append(name + b": " + draw.choice([b"%d", b"%04d"]) % len(body))
    else:
        headers.append(b"Transfer-Encoding: " + draw.choice([b"chunked", b"Chunked"]))
        body = chunked(draw, body)
    draw.shuffle(headers)
    return b"\r\n".join([*lines, *headers, b"", body])


TELLING = [
    b"\r",
    b"\n",
    b"\r\n",
    b" ",
    b"\t",
    b"\0",
    b":",
    b",",
    b";",
    b"0",
    b"-",
    b"\x0b",
    b"\xa0",
]


def mutated(draw: random.Random, data: bytes) -> bytes:
    """`data` with one to four small damages."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed) + 1)
        kind = draw.randrange(5)
        if kind == 0:
            changed[at : at + 1] = draw.choice(TELLING)
        elif kind == 1:
            changed[at:at] = draw.choice(TELLING)
        elif kind == 2:
            del changed[at : at + draw.randint(1, 4)]
        elif kind == 3:
            changed[at : at + 1] = bytes([draw.randrange(256)])
        else:  # a line once more, or somewhere else
            lines = bytes(changed).split(b"\r\n")
            lines.insert(draw.randrange(len(lines)), draw.choice(lines))
            changed[:] = b"\r\n".join(lines)
    return bytes(changed)


def drawn(seed: int) -> tuple[bytes, int | None]:
    """A stream of one to three requests, and how many when it was left as it is."""
    draw = random.Random(seed)
    parts = [well_formed(draw) for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.4:
        return b"".join(parts), len(parts)
    return mutated(draw, b"".join(parts)), None


# The two readers


def ours(seed: int, data: bytes) -> Read:
    """Cut at points of our own, which must make no difference."""
    whole = read_all([data], max_body=10_000)
    draw = random.Random(seed)
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.randint(1, 6)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert read_all(pieces, max_body=10_000).summary() == whole.summary(), data
    return whole


def theirs(data: bytes) -> list[Message]:
    """The whole messages that h11 reads before it needs more or gives up."""
    found: list[Message] = []
    while True:
        # It does not skip the empty lines that RFC 9112 2.2 has a server skip.
        for _ in range(4):
            data = data.removeprefix(b"\r\n")
        reader = h11.Connection(h11.SERVER)
        reader.receive_data(data)
        message = one_message(reader)
        if message is None:
            return found
        found.append(message)
        data = reader.trailing_data[0]


def one_message(reader: h11.Connection) -> Message | None:
    method = target = ""
    body = b""
    while True:
        try:
            event = reader.next_event()
        except h11.RemoteProtocolError:
            return None
        if isinstance(event, h11.Request):
            method, target = event.method.decode(), event.target.decode()
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return method, target, body
        else:
            return None


def check_boundaries(first: int, n: int) -> None:
    n_whole = n_read = n_refused = 0
    for seed in range(first, first + n):
        data, n_requests = drawn(seed)
        read = ours(seed, data)
        messages = read.summary()[0][: read.n_whole]
        by_h11 = theirs(data)
        assert messages == by_h11[: len(messages)], (seed, data, read.summary(), by_h11)
        if n_requests is not None:
            assert (len(messages), read.error) == (n_requests, None), (seed, data, read.error)
            n_whole += 1
        if read.error is None:
            assert len(by_h11) == len(messages), (seed, data, by_h11)
            n_read += 1
        else:
            assert read.error.http_status in ALLOWED, (seed, data, read.error)
            n_refused += 1
    assert n_whole > 0.3 * n
    assert n_read > n_whole
    assert n_refused > 0.2 * n


def test_boundaries_are_those_of_h11() -> None:
    span = seeds(600)
    check_boundaries(span.start, len(span))


@pytest.mark.slow
def test_boundaries_are_those_of_h11_over_many_requests() -> None:
    check_boundaries(1_000_000, 20_000)


# h11 as the client of a real server


async def answers(client: Client, data: bytes) -> tuple[list[tuple[int, bytes]], bool]:
    """Status and body of what h11 reads in reply to `data`, and whether the last one is whole."""
    client.writer.write(data)
    client.half_close()
    raw = await client.rest()
    found: list[tuple[int, bytes]] = []
    while raw:
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
        reader.send(h11.EndOfMessage())
        reader.receive_data(raw)
        while not isinstance(event := reader.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                found.append((event.status_code, b""))
            elif isinstance(event, h11.Data):
                status, body = found.pop()
                found.append((status, body + bytes(event.data)))
            elif event is h11.NEED_DATA:
                return found, ends_here(reader)
        raw = reader.trailing_data[0]
    return found, True


def ends_here(reader: h11.Connection) -> bool:
    """Whether the answer is one that the end of the connection completes."""
    reader.receive_data(b"")
    try:
        return isinstance(reader.next_event(), h11.EndOfMessage)
    except h11.RemoteProtocolError:
        return False


THREE = b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


def answer_to(method: str, target: str, body: bytes) -> bytes:
    """What the application answers; THREE to a request for that."""
    path = parse_target(method, target)[1]
    return THREE if path == "/three" else f"{method} {path} ".encode() + body


def check_server(first: int, n: int) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as served:
            for seed in range(first, first + n):
                data, n_requests = drawn(seed)
                client = Client(*await asyncio.open_connection(served.host, served.port))
                async with asyncio.timeout(PATIENCE_S):
                    found, is_whole = await answers(client, data)
                await client.close()
                statuses = [status for status, _ in found]
                # Every answer is the one to the request that h11 reads in that place.
                messages = theirs(data)
                for at, (status, echoed) in enumerate(found):
                    if status == 200:
                        wanted = answer_to(*messages[at])
                        is_cut = wanted == THREE and at == len(found) - 1  # perhaps
                        assert echoed == wanted[: len(echoed) if is_cut else None], (seed, data)
                if not is_whole:  # a stream for a client that is gone, as half-closing says
                    last = app.exchanges[-1]
                    assert (last.status, last.error) == (499, "left"), (seed, data)
                assert set(statuses) <= ALLOWED | {200}, (seed, data, statuses)
                errors = [status for status in statuses if status not in (200, 404)]
                assert len(errors) <= 1, (seed, data, statuses)
                assert errors in ([], statuses[-1:]), (seed, data, statuses)
                if n_requests is not None:
                    assert statuses, (seed, data)
            await served.until_connections(0)

    run(test())


def test_a_server_answers_whatever_comes() -> None:
    span = seeds(150)
    check_server(span.start, len(span))


@pytest.mark.slow
def test_a_server_answers_ten_thousand_of_them() -> None:
    check_server(2_000_000, 10_000)


# Smuggling: a second request hidden where one reader sees a body and another does not

HIDDEN = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
START = b"POST / HTTP/1.1\r\nHost: a\r\n"
CONTROLS = [bytes([code]) for code in [*range(9), 11, 12, *range(14, 32), 127]]
ODD = [
    *CONTROLS,
    b"\x80",
    b"\x85",
    b"\xa0",
    b"\xb2",
    b"\xff",
    b"+",
    b"-",
    b"_",
    b".",
    b"'",
    b'"',
    b"x",
]
TE = b"Transfer-Encoding: "
CL = b"Content-Length: "


def odd_lengths() -> Iterator[bytes]:
    """Content-Length values that some reader takes for 4 and another for none, or for 40."""
    for odd in ODD:
        yield from (odd + b"4", b"4" + odd, b"4" + odd + b"0")
    yield from (b"", b" ", b"4 0", b"4\t0", b"4,", b",4", b"4,4", b"4, 4", b"4;4", b"0x4", b"4h")
    yield from (
        b"4e1",
        b"4.0",
        b"four",
        b"\xef\xbc\x94",
        b"\xd9\xa4",
        b"4\\",
        b"4\r",
        b"(4)",
        b"-0",
    )
    for line in (b"4", b"40", b"0", b"04"):
        yield b"4\r\nContent-Length: " + line
        yield b"4\r\nX: y\r\ncontent-length: " + line
        yield b"4\r\n " + line
        yield b"4\r\n\t" + line


def odd_codings() -> Iterator[bytes]:
    """Transfer-Encoding values that some reader takes for chunked."""
    for odd in ODD:
        yield from (odd + b"chunked", b"chunked" + odd, b"chun" + odd + b"ked")
    for other in (b"identity", b"gzip", b"x", b"", b"chunked", b" "):
        yield from (b"chunked, " + other, b"chunked," + other, other + b",chunked")
        yield b"chunked\r\nTransfer-Encoding: " + other
        yield other + b"\r\nTransfer-Encoding: chunked"
        yield b"chunked\r\n " + other
    yield from (b"chunked;", b"chunked;q=1", b"chunked ;", b"chunk", b"chunkedd", b"ch unked")
    yield from (b"'chunked'", b'"chunked"', b"{chunked}", b"c\xd4\xa8unked", b"cHUNKEd\r")


def odd_names() -> Iterator[bytes]:
    """Names that some reader takes for one of the two."""
    for name, value in ((b"Content-Length", b"4"), (b"Transfer-Encoding", b"chunked")):
        odd = [
            *CONTROLS,
            b" ",
            b"\t",
            b"\xa0",
            b"\x85",
            b"\xff",
            b"(",
            b"/",
            b"[",
            b"@",
            b'"',
            b",",
        ]
        for mark in odd:
            yield name + mark + b": " + value
            yield mark + name + b": " + value
            yield name[:7] + mark + name[7:] + b": " + value
        yield from (name + b" " + value, name + b"\r\n: " + value, b": " + name + b": " + value)


def odd_line_ends() -> Iterator[bytes]:
    """A whole request in which one line ends in another way."""
    for end in (b"\n", b"\r", b"\r\r\n", b"\n\r", b"\x0b\r\n", b"\x0c\r\n", b"\0\r\n", b"\r \n"):
        for framing in (CL + b"4", TE + b"chunked"):
            body = b"abcd" if framing.startswith(CL) else b"4\r\nabcd\r\n0\r\n\r\n"
            lines = [b"POST / HTTP/1.1", b"Host: a", b"X: y", framing]
            for at in range(len(lines)):
                ends = [b"\r\n"] * len(lines)
                ends[at] = end
                head = b"".join(chain.from_iterable(zip(lines, ends, strict=True)))
                yield head + b"\r\n" + body


def odd_chunks() -> Iterator[bytes]:
    """Chunked bodies whose end is in doubt."""
    for odd in [*ODD, b" ", b"\t", b"g", b",", b":", b"\n", b"\r"]:
        if odd != b".":
            yield odd + b"4\r\nabcd\r\n0\r\n\r\n"
        yield b"4" + odd + b"\r\nabcd\r\n0\r\n\r\n"
        yield b"4\r\nabcd\r\n0" + odd + b"\r\n\r\n"
        yield b"4\r\nabcd" + odd + b"\r\n0\r\n\r\n"
    for end in (b"\n", b"\r", b"\r\r\n", b"\n\r", b"\n\n"):
        yield from (b"4" + end + b"abcd\r\n0\r\n\r\n", b"4\r\nabcd" + end + b"0\r\n\r\n")
        yield from (b"4;a" + end + b"abcd\r\n0\r\n\r\n", b"4\r\nabcd\r\n0" + end + b"\r\n")
        yield b"4\r\nabcd\r\n0\r\nX: y" + end + b"\r\n"
    yield from (b"0x4\r\nabcd\r\n", b"10000000000000004\r\nabcd\r\n", b"\r\n4\r\nabcd\r\n")
    for wrapped in (b"100000004", b"ffffffff00000004", b"00000000000000004"):
        yield wrapped + b"\r\nabcd\r\n0\r\n\r\n"
    yield from (
        b"4\r\nabc\r\n0\r\n\r\n",
        b"4\r\nabcde\r\n0\r\n\r\n",
        b"4 ; a\r\nabcd\r\n",
        b";a\r\n",
    )
    yield from (b"4\r\nabcd\r\n0\r\nX : y\r\n\r\n", b"4\r\nabcd\r\n0\r\n X: y\r\n\r\n")


def smuggling() -> list[bytes]:
    """Streams of which no second request may come out."""
    found = [START + CL + value + b"\r\n\r\nabcd" for value in odd_lengths()]
    found += [START + TE + value + b"\r\n\r\n0\r\n\r\n" for value in odd_codings()]
    # With a length beside it: a reader that does not know the coding goes by that.
    found += [START + CL + b"4\r\n" + TE + value + b"\r\n\r\nabcd" for value in odd_codings()]
    found += [START + line + b"\r\n\r\nabcd" for line in odd_names()]
    found += list(odd_line_ends())
    found += [START + TE + b"chunked\r\n\r\n" + body for body in odd_chunks()]
    plain = [CL + b"4", CL + b"0", TE + b"chunked", TE + b"Chunked"]
    for one, two in product(plain, plain):  # two framings, in any order and distance
        for between in (b"", b"X: y\r\n", b"Connection: close\r\n"):
            for body in (b"abcd", b"0\r\n\r\n"):
                found.append(START + one + b"\r\n" + between + two + b"\r\n\r\n" + body)
    old = b"POST / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n"
    found += [old + TE + value + b"\r\n\r\n0\r\n\r\n" for value in (b"chunked", b"gzip, chunked")]
    return [case + HIDDEN for case in dict.fromkeys(found)]


def test_a_thousand_ways_to_smuggle_are_refused() -> None:
    cases = smuggling()
    assert len(cases) > 1000
    for case in cases:
        read = read_all([case])
        assert read.error is not None, case
        assert read.error.http_status in (400, 413, 501), (case, read.error)
        assert [head.path for head in read.heads] in ([], ["/"]), case
        assert read.n_whole == 0, case


def check_smuggling(cases: list[bytes]) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as served:
            for case in cases:
                client = Client(*await asyncio.open_connection(served.host, served.port))
                await client.send(case)
                got = await client.response()
                assert got.status in (400, 413, 501), case
                assert await client.rest() == b"", case
                await client.close()
            assert not [e for e in app.exchanges if e.head and "smuggled" in e.head.path]

    run(test())


def test_a_server_closes_on_smuggling() -> None:
    check_smuggling(smuggling()[::20])


@pytest.mark.slow
def test_a_server_closes_on_all_smuggling() -> None:
    check_smuggling(smuggling())
