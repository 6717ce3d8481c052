"""Web pages and keys: who is answered, and what a page is told."""

from pathlib import Path

import pytest
from served import CHAT, Served, serving

from caldrix.api.access import Access
from caldrix.api.service import Settings

ORIGIN = {"Origin": "http://localhost:3000"}
FOREIGN = {"Origin": "https://example.com"}
PREFLIGHT = {"Access-Control-Request-Method": "POST"}


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
    ],
)
def test_which_pages_are_allowed(
    origins: tuple[str, ...] | None, origin: str, allowed: bool
) -> None:
    assert Access(origins).allows(origin) is allowed


def test_an_allowed_page_may_read_answers_errors_and_streams(quick: Served) -> None:
    for answer in (
        quick.get("/v1/models", **ORIGIN),
        quick.get("/nothing", **ORIGIN),
        quick.ask("POST", CHAT, {"model": "quick"}, ORIGIN),
    ):
        assert answer.headers["access-control-allow-origin"] == ORIGIN["Origin"]
        assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in quick.get("/v1/models", **FOREIGN).headers
    assert "access-control-allow-origin" not in quick.get("/v1/models").headers


def test_a_preflight_is_answered(quick: Served) -> None:
    asked = {
        **ORIGIN,
        **PREFLIGHT,
        "Access-Control-Request-Headers": "content-type, authorization",
        "Access-Control-Request-Private-Network": "true",
    }
    headers = quick.ask("OPTIONS", CHAT, headers=asked).headers
    assert headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert headers["access-control-allow-headers"] == "content-type, authorization"
    assert headers["access-control-allow-private-network"] == "true"
    assert headers["access-control-max-age"] == "600"
    bare = quick.ask("OPTIONS", CHAT, headers={**ORIGIN, **PREFLIGHT}).headers
    assert "access-control-allow-headers" not in bare
    refused = quick.ask("OPTIONS", CHAT, headers={**FOREIGN, **PREFLIGHT})
    assert (refused.status, refused.error["code"]) == (403, "cross_site_request")


def test_a_page_of_another_site_must_not_drive_the_server(quick: Served) -> None:
    site = {"Sec-Fetch-Site": "cross-site"}
    body = {"model": "quick", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    assert quick.ask("POST", CHAT, body, {**site, **FOREIGN}).status == 403
    assert quick.ask("POST", CHAT, body, site).status == 403
    assert quick.ask("POST", CHAT, body, {**site, **ORIGIN}).status == 200
    assert quick.get("/v1/models", **site, **FOREIGN).status == 200


def test_keys_when_there_are_none_are_not_looked_at(quick: Served) -> None:
    assert quick.get("/v1/models", Authorization="Bearer anything").status == 200


def test_a_key_is_asked_for_when_there_is_one(quick_path: Path) -> None:
    with serving(quick_path, Settings(access=Access(keys=("one", "zwei-ü")))) as served:
        assert served.get("/health").status == 200
        assert served.ask("OPTIONS", CHAT).status == 204
        for headers in (
            {},
            {"Authorization": "Bearer two"},
            {"Authorization": "Basic one"},
            {"Authorization": "Bearer"},
            {"x-api-key": "on"},
        ):
            answer = served.get("/v1/models", **headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        for headers in ({"Authorization": "bearer one"}, {"x-api-key": "one"}):
            assert served.get("/v1/models", **headers).status == 200
