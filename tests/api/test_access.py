"""Web pages and keys: who is answered, and what a page is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import CHAT, Answer, Served, serving

from caldrix.api import hosts
from caldrix.api.access import Access
from caldrix.api.refusals import ApiError
from caldrix.api.service import Settings
from caldrix.errors import RefusedError
from caldrix.http.messages import Headers, RequestHead

ORIGIN = {"Origin": "http://localhost:3000"}
FOREIGN = {"Origin": "https://example.com"}
PREFLIGHT = {"Access-Control-Request-Method": "POST"}
SITE = {"Sec-Fetch-Site": "cross-site"}
KEYS = ("one", " zwei-ü ", "três à", "\u9375")


def head(**fields: str) -> RequestHead:
    """A request with these headers; `_` in a name stands for `-`."""
    named = [(name.replace("_", "-"), value) for name, value in fields.items()]
    return RequestHead("GET", "/", "/", "", (1, 1), Headers(named), "127.0.0.1")


@pytest.fixture(scope="module")
def guarded(quick_path: Path) -> Iterator[Served]:
    """Asks for a key and for a host."""
    access = Access(keys=KEYS, hosts=("Box.example", "[::2]"))
    with serving(quick_path, Settings(access=access)) as served:
        yield served


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        (None, "http://localhost", True),
        (None, "https://127.0.0.1:8080", True),
        (None, "http://[::1]:3000", True),
        (None, "app://obsidian.md", True),
        (None, "http://localhost.example.com", False),
        (None, "http://127.0.0.1.example.com", False),
        (None, "null", False),
        (("*",), "https://example.com", True),
        ((), "http://localhost", False),
        (("https://a.example",), "https://a.example", True),
        (("https://a.example",), "http://localhost", False),
        (("HTTPS://A.example:443",), "https://a.example", True),
        (("http://[::1]:3000", "chrome-extension://abc"), "chrome-extension://abc", True),
        (("app://Notes",), "app://Notes", True),
        (("https://a.example",), "https://a.example:8443", False),
        (("https://a.example",), "http://a.example", False),
        (("https://a.example",), "https://a.example, https://a.example", False),
    ],
)
def test_which_pages_are_allowed(
    origins: tuple[str, ...] | None, origin: str, allowed: bool
) -> None:
    assert Access(origins).allows(origin) is allowed


def test_an_allowed_page_may_read_answers_errors_and_streams(quick: Served) -> None:
    body = {"model": "quick", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    answers = [
        quick.get("/v1/models", **ORIGIN),
        quick.get("/nothing", **ORIGIN),
        quick.ask("PUT", CHAT, headers=ORIGIN),
        quick.ask("POST", CHAT, {"model": "quick"}, ORIGIN),
        quick.ask("POST", CHAT, {**body, "stream": True}, ORIGIN),
        quick.get("/v1/models", **ORIGIN, **{"Content-Length": "x"}),  # of the HTTP layer
    ]
    assert [answer.status for answer in answers] == [200, 404, 405, 400, 200, 400]
    for answer in answers[:-1]:
        assert answer.headers["access-control-allow-origin"] == ORIGIN["Origin"]
        assert answer.headers["access-control-expose-headers"].startswith("x-request-id, ")
        assert answer.headers["vary"] == "Origin"


def test_other_pages_get_no_permission_and_caches_are_told(quick: Served) -> None:
    for headers in (FOREIGN, {}):
        answer = quick.get("/v1/models", **headers)
        assert answer.status == 200
        assert answer.headers["vary"] == "Origin"
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_with_no_pages_allowed_nothing_depends_on_the_page() -> None:
    assert Access(()).headers(head(origin="http://localhost")) == []


def test_a_preflight_is_answered(quick: Served) -> None:
    asked = {
        **ORIGIN,
        **PREFLIGHT,
        "Access-Control-Request-Headers": "content-type,x-stainless-os, X_odd.name!",
        "Access-Control-Request-Private-Network": "true",
    }
    headers = quick.ask("OPTIONS", CHAT, headers=asked).headers
    assert headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert headers["access-control-allow-headers"] == "content-type,x-stainless-os, X_odd.name!"
    assert headers["access-control-allow-origin"] == ORIGIN["Origin"]
    assert headers["allow"] == "OPTIONS, POST"
    assert headers["access-control-allow-private-network"] == "true"
    assert headers["access-control-max-age"] == "600"
    bare = quick.ask("OPTIONS", CHAT, headers={**ORIGIN, **PREFLIGHT}).headers
    assert "access-control-allow-headers" not in bare
    assert "access-control-allow-private-network" not in bare
    odd = {**asked, "Access-Control-Request-Headers": "a:b"}
    assert "access-control-allow-headers" not in quick.ask("OPTIONS", CHAT, headers=odd).headers


def test_a_preflight_of_another_page_is_refused_without_permissions(quick: Served) -> None:
    asked = {**FOREIGN, **PREFLIGHT, "Access-Control-Request-Private-Network": "true"}
    refused = quick.ask("OPTIONS", CHAT, headers=asked)
    assert (refused.status, refused.error["code"]) == (403, "cross_site_request")
    assert refused.error["type"] == "permission_error"
    assert not any(name.startswith("access-control") for name in refused.headers)
    assert quick.ask("OPTIONS", CHAT, headers=FOREIGN).status == 204  # asks for nothing
    assert quick.ask("OPTIONS", "/nothing", headers={**ORIGIN, **PREFLIGHT}).status == 404


def test_a_page_of_another_site_must_not_drive_the_server(quick: Served) -> None:
    body = {"model": "quick", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    refused = quick.ask("POST", CHAT, body, {**SITE, **FOREIGN})
    assert (refused.status, refused.error["code"]) == (403, "cross_site_request")
    assert quick.ask("POST", CHAT, body, SITE).status == 403
    assert quick.ask("POST", CHAT, body, {**SITE, **ORIGIN}).status == 200
    assert quick.get("/v1/models", **SITE, **FOREIGN).status == 200


def test_keys_when_there_are_none_are_not_looked_at(quick: Served) -> None:
    assert quick.get("/v1/models", Authorization="Bearer anything").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer two"},
        {"authorization": "Basic one"},
        {"authorization": "one"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer  "},
        {"authorization": "Bearer one, Bearer one"},
        {"authorization": "Bearer One"},
        {"x-api-key": "on"},
        {"x-api-key": ""},
        {"x-api-key": "Bearer one"},
    ],
)
def test_without_a_right_key_there_is_no_answer(guarded: Served, headers: dict[str, str]) -> None:
    answer = guarded.get("/v1/models", **headers, **ORIGIN)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert (answer.error["type"], answer.error["param"]) == ("invalid_request_error", None)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["access-control-allow-origin"] == ORIGIN["Origin"]


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
@pytest.mark.parametrize(
    "key",
    [
        b"one",
        "zwei-ü".encode(),
        "zwei-ü".encode("latin-1"),
        "três à".encode(),  # whose last byte is a space in Latin-1
        "\u9375".encode(),
    ],
)
def test_a_right_key_is_one_however_its_letters_are_sent(
    guarded: Served, name: str, key: bytes
) -> None:
    value = key.decode("latin-1")
    schemes = ("Bearer ", "bearer ", "BEARER  ") if name == "authorization" else ("",)
    for scheme in schemes:
        assert guarded.get("/v1/models", **{name: scheme + value}).status == 200


def test_a_key_may_end_with_what_unicode_calls_a_space() -> None:
    access = Access(keys=("a\u00a0",))
    access.check(head(x_api_key="a\xc2\xa0"), is_open=False)
    with pytest.raises(ApiError):
        access.check(head(x_api_key="a"), is_open=False)


def test_a_wrong_key_and_none_are_told_apart(guarded: Served) -> None:
    for headers in ({}, {"x-api-key": ""}, {"authorization": "Basic eA=="}):
        message = guarded.get("/v1/models", **headers).error["message"]
        assert message.startswith("this server asks for an API key; ")
    wrong = guarded.get("/v1/models", **{"x-api-key": "secret"}).error["message"]
    assert wrong == "the API key is wrong; send it as Authorization: Bearer KEY"


def test_a_key_from_a_command_line_may_be_any_bytes() -> None:
    access = Access(keys=("\udcff\udcfe",))
    access.check(head(x_api_key="\xff\xfe"), is_open=False)


def test_some_routes_need_no_key(guarded: Served) -> None:
    for path in ("/health", "/v1/health", "/livez", "/readyz"):
        assert guarded.get(path).status == 200
        assert guarded.ask("HEAD", path).status == 200
    for path in ("/v1/models", CHAT, "/health"):
        assert guarded.ask("OPTIONS", path).status == 204
    preflight = guarded.ask("OPTIONS", CHAT, headers={**ORIGIN, **PREFLIGHT})
    assert preflight.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    for path in ("/", "/version", "/props", "/slots", "/metrics", "/debug/requests"):
        assert guarded.get(path).status == 401


def test_keys_are_never_shown() -> None:
    shown = repr(Settings(access=Access(keys=("hidden-key",))))
    assert "hidden" not in shown
    assert "digest" not in shown


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "a\0", "\ud800"])
def test_what_no_header_can_carry_is_no_key(key: str) -> None:
    with pytest.raises(RefusedError, match="a key must") as caught:
        Access(keys=(key,))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        ("box.example", True),
        ("BOX.Example:80", True),
        ("box.example.", True),
        ("box.example:", True),
        ("[::2]", True),
        ("[0:0::2]:8425", True),
        ("localhost", True),
        ("LocalHost:9", True),
        ("127.0.0.1:8425", True),
        ("127.9.9.9", True),
        ("[::1]:8425", True),
        ("[::ffff:127.0.0.1]", True),
        ("rebound.example", False),
        ("box.example.rebound.example", False),
        ("xbox.example", False),
        ("localhost.rebound.example", False),
        ("127.0.0.1.rebound.example", False),
        ("192.168.1.5", False),
        ("[::3]", False),
        ("::2", False),
        ("%62ox.example", False),
    ],
)
def test_which_hosts_are_answered(host: str, is_answered: bool) -> None:
    access = Access(hosts=("Box.example", "[::2]"))
    if is_answered:
        access.check_host(head(host=host))
        return
    with pytest.raises(ApiError, match="--allowed-hosts") as caught:
        access.check_host(head(host=host))
    error = caught.value
    assert (error.status, error.code, error.kind) == (403, "host_not_allowed", "permission_error")
    assert host in error.message


def test_a_request_for_another_host_is_refused_before_its_key_is_looked_at(
    guarded: Served,
) -> None:
    rebound = {"Host": "rebound.example"}
    for method, path in (("GET", "/v1/models"), ("POST", CHAT), ("OPTIONS", CHAT)):
        answer = guarded.ask(method, path, headers={**rebound, **ORIGIN})
        assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
        assert answer.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    for path in ("/health", "/livez", "/readyz"):  # whoever probes them, under whatever name
        assert guarded.get(path, **rebound).status == 200
        assert guarded.ask("OPTIONS", path, headers=rebound).status == 204
    assert guarded.get("/v1/models", Host="box.example:1", **{"x-api-key": "one"}).status == 200


def test_the_host_of_a_whole_address_counts_and_none_is_refused(guarded: Served) -> None:
    key = {"x-api-key": "one"}
    assert guarded.get("http://rebound.example/v1/models", Host="localhost", **key).status == 403
    assert guarded.get("http://box.example/v1/models", Host="rebound.example", **key).status == 200
    with pytest.raises(ApiError, match="without a Host header"):
        Access(hosts=()).check_host(head())


def test_any_host_is_answered_by_default(quick: Served) -> None:
    assert quick.get("/v1/models", Host="rebound.example").status == 200


def test_a_host_and_its_odd_spellings() -> None:
    assert hosts.host_of("") == ""
    assert hosts.host_of("[v1.x]:1") == "[v1.x]"
    with pytest.raises(RefusedError, match=r"write example\.com"):
        Access(hosts=("https://example.com",))
    with pytest.raises(RefusedError, match=r"write https://example\.com"):
        Access(origins=("https://example.com/",))


# The checks before a body is read, in order: each request fails all from its own on.
ORDER = [
    ("PURGE", "/nothing", {}, 501),
    ("PUT", "/nothing", {}, 404),
    ("PUT", CHAT, {}, 405),
    ("POST", CHAT, {}, 403),
    ("POST", CHAT, {"Host": "box.example"}, 403),
    ("POST", CHAT, {"Host": "box.example", **ORIGIN}, 401),
    ("POST", CHAT, {"Host": "box.example", **ORIGIN, "x-api-key": "one"}, 413),
]


@pytest.mark.parametrize(("method", "path", "headers", "status"), ORDER)
def test_the_first_check_that_fails_answers(
    guarded: Served, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    bad = {
        "Host": "rebound.example",
        **SITE,
        **FOREIGN,
        "Content-Length": str(5 << 20),
        "Expect": "no-such-thing",
        "Content-Encoding": "unknown",
    }
    answer: Answer = guarded.ask(method, path, headers={**bad, **headers})
    assert answer.status == status
    allowed = answer.headers.get("access-control-allow-origin")
    assert allowed == headers.get("Origin")  # whichever check it was
    if status == 403:
        code = "cross_site_request" if "Host" in headers else "host_not_allowed"
        assert answer.error["code"] == code
