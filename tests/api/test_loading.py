"""What the address answers before there is a model, and the moment at which there is one."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from served import CHAT, Answer

from caldrix import __version__
from caldrix.api.access import Access
from caldrix.api.answers import MAX_BODY_BYTES
from caldrix.api.json_body import LARGE_BYTES
from caldrix.api.routes import ROUTES, TABLE, Body, Route
from caldrix.api.service import Settings
from caldrix.api.serving import Front, Server
from caldrix.cli.loop_thread import LoopThread
from caldrix.engine.load import LoadedModel, LoadOptions, load_model
from caldrix.http.server import open_listeners

READY = {"/health", "/readyz", "/livez", "/version", "/"}
WAITING = [route for route in ROUTES if route.name not in READY]
ANYBODY = Access()
ORIGIN = {"Origin": "http://localhost:3000"}


@dataclass
class Address:
    """A front with its loop, and clients of it."""

    front: Front
    loop: LoopThread

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.front.port, timeout=30)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        client = self.connect()
        try:
            return asked(client, method, path, body, headers)
        finally:
            client.close()

    def raw(self, request: bytes) -> Answer:
        with socket.create_connection(("127.0.0.1", self.front.port), 30) as client:
            client.sendall(request)
            response = http.client.HTTPResponse(client)
            response.begin()
            return answer_of(response)

    def serve(self, model: LoadedModel) -> Server:
        """From now on the model answers."""
        server = Server(model, settings=Settings(), front=self.front)
        self.loop.run(server.start())
        return server


def asked(
    client: http.client.HTTPConnection, method: str, path: str, body: Any, headers: dict[str, str]
) -> Answer:
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    client.request(method, path, data, headers)
    return answer_of(client.getresponse())


def answer_of(response: http.client.HTTPResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


@contextmanager
def listening(access: Access = ANYBODY) -> Iterator[Address]:
    front = Front("quick", "127.0.0.1", 0, Settings(access=access))
    with LoopThread() as loop:
        loop.run(front.start(open_listeners("127.0.0.1", 0)))
        yield Address(front, loop)
        loop.run(front.close(0.0))


@pytest.fixture(scope="module")
def loading() -> Iterator[Address]:
    with listening() as address:
        yield address


@pytest.fixture
def model(quick_path: Path) -> Iterator[LoadedModel]:
    model = load_model(quick_path, LoadOptions(threads=1), lambda line: None)
    yield model
    model.program.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end


def path_of(route: Route) -> str:
    return route.path.replace("*", "quick")


def body_of(route: Route) -> dict[str, Any] | None:
    return {"model": "quick"} if route.method == "POST" else None


def is_loading(answer: Answer) -> bool:
    error = answer.error
    assert (answer.status, error["type"]) == (503, "unavailable_error")
    assert answer.headers["retry-after"] == "1"
    return bool(error["code"] == "model_loading")


# Before there is a model


@pytest.mark.parametrize("route", WAITING, ids=lambda route: f"{route.method} {route.path}")
def test_what_needs_a_model_is_told_to_come_back(loading: Address, route: Route) -> None:
    answer = loading.ask(route.method, path_of(route), body_of(route))
    assert is_loading(answer)
    assert answer.error["message"] == "the model `quick` is loading; ask again soon"
    assert answer.headers["x-request-id"].startswith("req-")
    assert answer.headers["connection"] == "keep-alive"


def test_the_state_is_told(loading: Address) -> None:
    for path in ("/health", "/v1/health", "/readyz"):
        answer = loading.ask("GET", path)
        assert is_loading(answer)
        assert answer.json["status"] == "loading"
        head = loading.ask("HEAD", path)
        assert (head.status, head.body) == (503, b"")
    live = loading.ask("GET", "/livez")
    assert (live.status, live.json) == (200, {"status": "ok"})
    assert loading.ask("GET", "/version").json == {"version": __version__}
    assert loading.ask("GET", "/").json["routes"] == TABLE.index


def test_the_checks_before_a_body_hold(loading: Address) -> None:
    assert loading.ask("BREW", CHAT).status == 501
    assert loading.ask("GET", "/nothing").error["code"] == "unknown_url"
    refused = loading.ask("GET", CHAT)
    assert (refused.status, refused.headers["allow"]) == (405, "OPTIONS, POST")
    asked = {**ORIGIN, "Access-Control-Request-Method": "POST"}
    assert loading.ask("OPTIONS", CHAT, **asked).status == 204
    assert loading.ask("POST", CHAT, {}, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    answer = loading.ask("POST", CHAT, {"model": "quick"}, **ORIGIN)
    assert answer.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    assert loading.ask("POST", CHAT, b" " * (MAX_BODY_BYTES + 1)).status == 413
    assert loading.ask("POST", CHAT, b"x", **{"Content-Encoding": "br"}).status == 415
    assert loading.ask("POST", CHAT, b"x", Expect="more").status == 417
    form = {"Content-Type": "multipart/form-data"}
    assert loading.ask("POST", CHAT, b"x", **form).error["code"] == "unsupported_media_type"
    assert loading.raw(b"GET / HTTP/1.1\r\n\r\n").error["code"] == "bad_request"


def test_a_key_is_asked_for() -> None:
    with listening(Access(keys=("secret",))) as address:
        assert address.ask("GET", "/v1/models").status == 401
        assert address.ask("GET", "/version").status == 401
        assert is_loading(address.ask("GET", "/v1/models", Authorization="Bearer secret"))
        assert address.ask("GET", "/health").json["status"] == "loading"
        assert address.ask("GET", "/livez").status == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[" + b" " * LARGE_BYTES, 400, "invalid_json"),  # read on a thread
        (b'{"model": 1}', 400, "invalid_type"),
        (b'{"model": "other"}', 404, "model_not_found"),
        (b"{}", 400, "missing_required_parameter"),
    ],
)
def test_a_body_that_is_wrong_without_a_model_is_refused_as_with_one(
    loading: Address, model: LoadedModel, body: bytes, status: int, code: str
) -> None:
    routes = [route for route in ROUTES if route.body is not Body.UNREAD]
    before = {route.path: loading.ask("POST", route.path, body) for route in routes}
    with listening() as address:
        address.serve(model)
        after = {route.path: address.ask("POST", route.path, body) for route in routes}
    for route in routes:
        if body == b"{}" and route.body is Body.MAY_NAME_MODEL:
            assert is_loading(before[route.path])
            continue
        assert (before[route.path].status, before[route.path].error["code"]) == (status, code)
        assert before[route.path].body == after[route.path].body


# The moment


def test_a_kept_connection_is_told_to_wait_and_then_answered(model: LoadedModel) -> None:
    asks = {"model": "quick", "messages": [{"role": "user", "content": "x"}]}
    with listening() as address:
        kept, silent = address.connect(), address.connect()
        silent.connect()
        assert is_loading(asked(kept, "POST", CHAT, asks, {}))
        assert asked(kept, "GET", "/health", None, {}).json["status"] == "loading"
        server = address.serve(model)
        for client in (kept, silent):
            answer = asked(client, "POST", CHAT, asks, {})
            assert answer.json["choices"][0]["message"]["content"] == "The quick!"
        assert asked(kept, "GET", "/health", None, {}).json == {"status": "ok"}
        assert server.url == address.front.url
        counted = asked(kept, "GET", "/metrics", None, {}).body.decode()
        assert "caldrix_connections_total 2\n" in counted
        for status, n in ((200, 2), (503, 1)):
            labels = f'route="{CHAT}",method="POST",status="{status}"'
            assert f"caldrix_http_responses_total{{{labels}}} {n}\n" in counted
        for client in (kept, silent):
            client.close()
        address.loop.run(server.close(0.0))


def test_no_client_is_lost_at_the_moment(model: LoadedModel) -> None:
    """Every try gets an answer: loading, and from some moment on never again."""
    found: list[list[str]] = []
    is_over = threading.Event()

    def hammer(address: Address) -> None:
        states: list[str] = []
        found.append(states)
        while not is_over.is_set():
            states.append(address.ask("GET", "/health").json["status"])

    with listening() as address:
        threads = [threading.Thread(target=hammer, args=(address,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(found) == 4 and all(len(states) > 20 for states in found))
        server = address.serve(model)
        n_before = [len(states) for states in found]
        until(lambda: all(len(found[i]) > n_before[i] + 20 for i in range(4)))
        is_over.set()
        for thread in threads:
            thread.join(30)
        address.loop.run(server.close(0.0))
    for states in found:
        n_loading = states.count("loading")
        assert n_loading >= 20
        assert states == ["loading"] * n_loading + ["ok"] * (len(states) - n_loading)
