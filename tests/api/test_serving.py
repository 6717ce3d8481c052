"""A server's life: embedding it, closing it while it answers, and what a failed engine gives."""

import asyncio
import http.client
import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served import CHAT, COMPLETIONS, Answer, Served, serving

from caldrix import inferno
from caldrix.api.chat import ChatShape
from caldrix.api.refusals import ApiError, dumps, dumps_in_pieces, from_library, shown
from caldrix.api.service import Settings
from caldrix.engine.engine import Engine
from caldrix.engine.load import LoadOptions, load_model
from caldrix.errors import BusyError, EngineError, NotFoundError, RefusedError


def test_an_application_serves_a_model_with_its_own_engine(quick_path: Path) -> None:
    async def run() -> None:
        model = inferno.load_model(quick_path, LoadOptions(threads=1), lambda line: None)
        engine = inferno.Engine(model.program)
        await engine.start()
        async with inferno.serve(model, engine=engine) as server:
            assert server.url == f"http://127.0.0.1:{server.port}"
            served = Served(server, model, asyncio.get_running_loop())
            answer = await asyncio.to_thread(served.chat, max_tokens=1)
            assert answer.status == 200
        request = inferno.Request((84,), max_tokens=1)
        async with inferno.stream_text(engine, model.tokenizer, request) as stream:
            assert [piece async for piece in stream] == ["h"]  # the engine is still the caller's
        await engine.close()
        model.program.close()

    asyncio.run(run())


def test_an_ipv6_address_stands_in_brackets(quick_path: Path) -> None:
    model = load_model(quick_path, LoadOptions(threads=1), lambda line: None)
    assert inferno.serve(model, host="::1", port=80).url == "http://[::1]:80"
    model.program.close()


def test_a_taken_port_is_refused(quick: Served) -> None:
    async def run() -> None:
        server = inferno.serve(quick.model, port=quick.server.port)
        with pytest.raises(RefusedError, match=f"port {quick.server.port}: in use"):
            await server.start()

    asyncio.run(run())


def in_background(work: Any, found: list[Answer]) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread


def wait_for(served: Served, state: str, n: int = 1) -> None:
    while len(served.get(f"/debug/requests?state={state}").json["requests"]) < n:
        pass


def test_closing_cuts_what_runs_and_what_waits(endless_path: Path) -> None:
    found: list[Answer] = []
    with serving(endless_path, context=4096) as served:
        first = in_background(lambda: served.chat(stream=True), found)
        wait_for(served, "running")
        second = in_background(lambda: served.chat(), found)
        wait_for(served, "queued")
        served.on_loop(served.server.close(0.0))
        first.join(30)
        second.join(30)
    streamed, waiting = sorted(found, key=lambda answer: answer.status)
    *_, error, done = streamed.events
    assert (error["error"]["code"], done) == ("shutting_down", "[DONE]")
    assert (waiting.status, waiting.error["code"]) == (503, "shutting_down")
    assert waiting.headers["retry-after"] == "1"


def test_while_it_drains_nothing_new_is_taken(endless_path: Path) -> None:
    found: list[Answer] = []
    with serving(endless_path, context=4096) as served:
        thread = in_background(lambda: served.chat(max_tokens=50), found)
        wait_for(served, "running")
        served.server._service.is_draining = True
        assert served.chat().error["code"] == "shutting_down"
        assert served.get("/health").status == 503
        assert served.get("/livez").status == 200
        thread.join(30)
        served.server._service.is_draining = False
    assert found[0].status == 200


def test_past_the_queue_a_request_is_told_when_to_come_back(endless_path: Path) -> None:
    found: list[Answer] = []
    with serving(endless_path, Settings(queue_depth=0), context=4096) as served:
        assert served.chat(max_tokens=1, n=3).status == 200  # choices share one place
        thread = in_background(lambda: served.chat(), found)
        wait_for(served, "running")
        answer = served.chat()
        served.ask("POST", f"{CHAT}/chatcmpl-2/cancel")
        thread.join(30)
    assert (answer.status, answer.error["code"]) == (429, "queue_full")
    assert answer.error["type"] == "rate_limit_error"
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert int(answer.headers["retry-after-ms"]) == 1000 * int(answer.headers["retry-after"])


def test_a_request_that_the_engine_refuses_names_the_field(quick: Served) -> None:
    every = quick.model.program.vocab_size
    quick.server._service.model = replace(quick.model, eos_token_ids=frozenset(range(every)))
    answer = quick.chat(min_tokens=1)
    quick.server._service.model = quick.model
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert "every token ends the reply" in answer.error["message"]


def test_an_engine_that_cannot_go_on_is_told_once_and_for_all(quick_path: Path) -> None:
    with serving(quick_path) as served:
        engine: Engine = served.server._engine
        served.on_loop(_fail(engine))
        assert served.on_loop(served.server.failed()) == "boom"
        answer = served.chat()
        assert (answer.status, answer.error["code"]) == (503, "engine_error")
        assert answer.headers["x-should-retry"] == "false"
        health = served.get("/health")
        assert (health.status, health.json["status"]) == (503, "failed")


async def _fail(engine: Engine) -> None:
    engine._fail("boom")


def test_an_engine_that_fails_under_a_request_answers_it(endless_path: Path) -> None:
    with serving(endless_path, context=4096) as served:
        running = threading.Thread(target=lambda: answers.append(served.chat()))
        answers: list[Any] = []
        running.start()
        wait_for(served, "running")
        served.on_loop(_fail(served.server._engine))
        running.join(30)
        assert (answers[0].status, answers[0].error["code"]) == (500, "engine_error")
        assert answers[0].headers["x-should-retry"] == "false"
        text = served.get("/metrics").body.decode()
        assert 'outcome="error"} 1' in text
        assert 'outcome="rejected"' not in text


def test_a_bug_under_a_stream_is_told_in_it(quick: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*values: Any) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(ChatShape, "piece", broken)
    with pytest.raises(http.client.IncompleteRead) as cut:
        quick.chat(stream=True)
    assert b'"code":"internal_error"' in cut.value.partial
    record = quick.get("/debug/requests?state=done&limit=1").json["requests"][0]
    assert record["error_code"] == "internal_error"


def test_a_step_that_fails_is_an_error_and_the_server_goes_on(quick_path: Path) -> None:
    with serving(quick_path) as served:
        program = served.model.program
        step = program.step

        def broken(*values: Any) -> Any:
            program.step = step  # type: ignore[method-assign]
            raise RuntimeError("boom")

        program.step = broken  # type: ignore[method-assign]
        answer = served.chat()
        assert (answer.status, answer.error["code"]) == (500, "engine_error")
        program.step = broken  # type: ignore[method-assign]
        *_, error, done = served.complete("T", stream=True).events
        assert (error["error"]["type"], done) == ("server_error", "[DONE]")
        assert served.chat(max_tokens=1).status == 200
        records = served.get("/debug/requests").json["requests"]
        assert [record["outcome"] for record in records] == ["ok", "error", "error"]


def test_a_client_that_leaves_ends_its_request(endless_path: Path) -> None:
    with serving(endless_path, context=4096) as served:
        for path, fields in ((CHAT, {"stream": True}), (CHAT, {}), (COMPLETIONS, {"prompt": "A"})):
            fields = {"model": served.model.name, "max_tokens": 1 << 20, **fields}
            if path == CHAT:
                fields["messages"] = [{"role": "user", "content": "x"}]
            body = json.dumps(fields).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", served.server.port)) as client:
                client.sendall(head.encode() + body)
                wait_for(served, "running")
            while served.get("/debug/requests?state=running").json["requests"]:
                pass
        records = served.get("/debug/requests").json["requests"]
    assert [record["outcome"] for record in records] == ["cancelled"] * 3
    assert [record["status"] for record in records] == [499] * 3


def test_a_bug_is_a_500_with_the_requests_id(
    quick_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(quick_path) as served:
        served.model.tokenizer.encode = None  # type: ignore[method-assign, assignment]
        answer = served.complete("T")
        request_id = answer.headers["x-request-id"]
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert request_id in answer.error["message"]
    assert (
        f"internal error: TypeError: 'NoneType' object is not callable (request {request_id}"
        in (capfd.readouterr().err)
    )


def test_the_librarys_errors_have_their_place() -> None:
    assert from_library(BusyError("full")).status == 429
    assert from_library(EngineError("broken")).code == "engine_error"
    refused = from_library(RefusedError("no"), "prompt")
    assert (refused.status, refused.param) == (400, "prompt")
    assert from_library(NotFoundError("gone")).status == 400


def test_how_values_are_shown() -> None:
    assert [shown(v) for v in ({}, [], [1], None, True, 1.5)] == [
        "an object",
        "[]",
        "an array",
        "null",
        "true",
        "1.5",
    ]
    assert shown("\x1b[31m") == r'"\u001b[31m"'
    assert shown("\u200b") == r'"\u200b"'
    assert len(shown("x" * 1000)) == 64


def test_an_answer_is_never_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"a": float("nan")})
    error = ApiError(400, "c", "m", extra={"n": 1})
    assert dumps(error.body) == (
        b'{"error":{"code":"c","message":"m","n":1,"param":null,"type":"invalid_request_error"}}'
    )


def test_json_in_pieces_is_the_same_json() -> None:
    scores = [{"token": "é", "logprob": -i / 7, "bytes": [i]} for i in range(200)]
    for value in ({"b": {"z": scores, "a": None}, "a": "x"}, scores, [], {}, 5, scores[:64]):
        assert dumps_in_pieces(value) == dumps(value)


def test_work_for_a_client_that_left_is_not_done(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep two threads from those who wait."""
    done: list[str] = []
    may_go = threading.Event()
    with serving(quick_path) as served:
        monkeypatch.setattr(
            served.model.tokenizer, "encode_text", lambda text: done.append(text) or [1]
        )
        threads = served.server._service._threads
        held = [threads.submit(may_go.wait, 30) for _ in range(2)]
        for word in ("left", "stays"):
            body = json.dumps({"content": word, "parse_special": False}).encode()
            head = f"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            client = socket.create_connection(("127.0.0.1", served.server.port), timeout=30)
            client.sendall(head.encode() + body)
            while threads._work_queue.qsize() < (1 if word == "left" else 2):
                time.sleep(0.001)
            if word == "left":
                client.close()
        assert served.get("/health").status == 200  # the loop has seen that the first one left
        may_go.set()
        assert client.recv(12) == b"HTTP/1.1 200"
        client.close()
        assert all(future.result(30) for future in held)
    assert done == ["stays"]
