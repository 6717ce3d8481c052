"""The model list, byte for byte; the state routes; the index; what is not answered here."""

from pathlib import Path
from typing import Any

import pytest
from served import CHAT, Served, serving

from caldrix import __version__
from caldrix.api.service import State
from caldrix.api.state import health_response


def test_the_list_is_the_documented_bytes(quick: Served) -> None:
    answer = quick.get("/v1/models")
    assert answer.body == (
        b'{"data":[{"id":"quick","object":"model","owned_by":"inferno"}],"object":"list"}'
    )
    assert quick.get("//models/").body == answer.body


def test_details_are_given_where_they_are_asked_for(quick: Served) -> None:
    entry = quick.get("/v1/models?details=1").json["data"][0]
    assert entry == quick.get("/v1/models/quick").json
    assert isinstance(entry.pop("created"), int)
    layer = 288 * 288 * 2 + 96 * 288 * 2 + 32 * 288 * 3 + 288 * 2
    assert entry == {
        "id": "quick",
        "object": "model",
        "owned_by": "inferno",
        "max_model_len": 512,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "meta": {
            "backend": "cpu",
            "chat_template": True,
            "dtype": "bf16",
            "n_params": layer + 288 * 288 * 2 + 288,
            "n_vocab": 288,
            "revision": None,
        },
    }


def test_a_name_with_a_slash_is_found_either_way(quick: Served) -> None:
    assert quick.get("/models/%71uick").json["id"] == "quick"
    unknown = quick.get("/v1/models/Some%2FModel")
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    assert "`Some/Model`" in unknown.error["message"]


def test_the_list_of_the_decision_client(quick: Served) -> None:
    body = quick.get("/v1/models", **{"X-TypeSafe-SDK": "1"}).json
    assert [model["name"] for model in body["models"]] == ["quick", "jev-latest"]


def test_state_routes(quick: Served) -> None:
    for path in ("/health", "/v1/health", "/readyz", "/livez"):
        assert quick.get(path).json == {"status": "ok"}
    assert quick.get("/version").json == {"version": __version__}
    assert quick.get("/").json["routes"][CHAT] == ["POST"]
    props = quick.get("/props").json
    assert props["model_alias"] == "quick"
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert "messages" in props["chat_template"]


def test_health_tells_that_it_will_not_last() -> None:
    draining = health_response(State.DRAINING)
    assert draining.status == 503
    assert dict(draining.headers)["retry-after"] == "1"
    assert b'"code":"shutting_down"' in draining.body
    assert b'"status":"failed"' in health_response(State.FAILED).body


def test_head_and_options_of_a_route(quick: Served) -> None:
    head = quick.ask("HEAD", "/v1/models")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(quick.get("/v1/models").body))
    options = quick.ask("OPTIONS", "/v1/models")
    assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    assert quick.ask("OPTIONS", CHAT).headers["allow"] == "OPTIONS, POST"
    assert quick.ask("OPTIONS", "*").status == 204


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_url"),
        ("POST", "/v1/chat/completions/x", 404, "unknown_url"),
        ("GET", "/v1", 404, "unknown_url"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("PUT", CHAT, 405, "method_not_allowed"),
        ("HEAD", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/metrics", 405, "method_not_allowed"),
        ("BREW", "/v1/models", 501, "not_implemented"),
        ("POST", "/v1/embeddings", 400, "unsupported_model"),
        ("POST", "/rerank", 400, "unsupported_model"),
        ("POST", "/v1/decisions", 400, "unsupported_model"),
        ("POST", "/v1/responses", 404, "unknown_url"),
    ],
)
def test_what_is_not_answered(
    quick: Served, method: str, path: str, status: int, code: str
) -> None:
    answer = quick.ask(method, path, b"{}")
    assert answer.status == status
    if method != "HEAD":
        assert answer.error["code"] == code
    assert ("allow" in answer.headers) == (status == 405)
    assert (answer.headers.get("x-should-retry") == "false") == (status == 501)


def test_connect_is_a_method_that_no_route_takes(quick: Served) -> None:
    answer = quick.ask("CONNECT", "example.org:443")
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")


def test_routes_of_others_are_refused_in_their_own_shape(quick: Served) -> None:
    decision = quick.ask("POST", "/v1/systemone", {})
    assert (decision.status, decision.json["detail"]["error_type"]) == (400, "unsupported_model")
    message = quick.ask("POST", "/v1/messages", {}, {"x-request-id": "mine"})
    assert (message.status, message.json["request_id"]) == (404, "mine")
    assert message.json["error"]["type"] == "not_found_error"


def test_every_answer_has_a_request_id(quick: Served) -> None:
    own = quick.get("/health", **{"X-Request-Id": "a.b:c-1"})
    assert own.headers["x-request-id"] == "a.b:c-1"
    for bad in ("a b", "x" * 129):
        assert quick.get("/health", **{"X-Request-Id": bad}).headers["x-request-id"] != bad
    made = {quick.get(path).headers["x-request-id"] for path in ("/health", "/none", "/health")}
    assert len(made) == 3
    assert all(request_id.startswith("req-") for request_id in made)
    assert quick.chat(stream=True, max_tokens=1).headers["x-request-id"] not in made


def test_a_body_over_the_limit_is_refused_by_its_length(quick: Served) -> None:
    answer = quick.ask("POST", CHAT, b"x" * ((4 << 20) + 1))
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert answer.error["message"] == "request body is over 4194304 bytes"


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_a_body_of_parts_is_refused_and_any_other_is_json(quick: Served, path: str) -> None:
    body = {"model": quick.model.name, "prompt": "T", "max_tokens": 1}
    for kind in ("application/x-www-form-urlencoded", "text/plain", "x/multipart"):
        assert quick.ask("POST", path, body, {"Content-Type": kind}).status == 200
    for kind in ("multipart/form-data; boundary=a", "Multipart/mixed"):
        answer = quick.ask("POST", path, body, {"Content-Type": kind})
        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["accept-encoding"].startswith("gzip, deflate")


def test_a_large_body_is_read_on_a_thread(quick: Served) -> None:
    assert quick.chat(max_tokens=1, padding="x" * 100_000).status == 200
    assert quick.ask("POST", CHAT, b"x" * 100_000).error["code"] == "invalid_json"


def test_tokens_there_and_back(quick: Served) -> None:
    ids = quick.model.tokenizer.encode("Té")
    body = quick.ask("POST", "/tokenize", {"content": "Té"}).json
    assert body == {"count": 3, "max_model_len": 512, "tokens": ids}
    assert quick.ask("POST", "/v1/tokenize", {"prompt": "Té", "model": "quick"}).json == body
    back = quick.ask("POST", "/detokenize", {"tokens": ids}).json
    assert back == {"content": "Té", "prompt": "Té"}


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"content": "<|end|>"}, [258]),
        ({"content": "<|end|>", "parse_special": False}, list(b"<|end|>")),
        ({"content": "a", "parse_special": False, "add_special": True}, [97]),
        ({"content": "é", "with_pieces": True}, "pieces"),
    ],
)
def test_how_a_text_is_taken_apart(quick: Served, fields: dict[str, Any], tokens: Any) -> None:
    if tokens == "pieces":
        tokens = [{"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]
    assert quick.ask("POST", "/tokenize", fields).json["tokens"] == tokens


def test_a_chat_is_counted_and_shown_as_it_is_sent(quick: Served) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "quick", "messages": messages}
    text = quick.ask("POST", "/apply-template", body).json["prompt"]
    assert text == "<|role|>user\nhi<|end|><|role|>assistant\n"
    told = quick.ask("POST", f"{CHAT}/input_tokens", body).json
    used = quick.chat(messages, max_tokens=1).json["usage"]["prompt_tokens"]
    assert told == {"input_tokens": used, "object": "response.input_tokens"}
    open_ended = {"messages": messages, "add_generation_prompt": False, "with_pieces": True}
    pieces = [t["piece"] for t in quick.ask("POST", "/tokenize", open_ended).json["tokens"]]
    assert "".join(pieces) == "<|role|>user\nhi<|end|>"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/apply-template", {}, "messages"),
        (f"{CHAT}/input_tokens", {"messages": []}, "messages"),
    ],
)
def test_what_the_tools_refuse(
    quick: Served, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = quick.ask("POST", path, fields)
    assert answer.status in (400, 404)
    assert answer.error["param"] == param


def test_a_text_that_cannot_be_spelled_is_refused(tmp_path: Path) -> None:
    from known_reply import write_model

    from caldrix.errors import RefusedError

    def refuse(*values: Any) -> list[int]:
        raise RefusedError("cannot be spelled")

    with serving(write_model(tmp_path / "m", "ABC")) as served:
        served.model.tokenizer.encode = refuse  # type: ignore[method-assign]
        answer = served.ask("POST", "/tokenize", {"content": "A"})
    assert (answer.status, answer.error["message"]) == (400, "cannot be spelled")


def test_a_template_that_refuses_says_its_own_sentence(tmp_path: Path) -> None:
    from known_reply import write_model

    template = "{% if messages|length > 1 %}{{ raise_exception('only one') }}{% endif %}x"
    with serving(write_model(tmp_path / "m", "ABC", template=template)) as served:
        two = [{"role": "user", "content": "a"}] * 2
        for path in (CHAT, "/apply-template"):
            answer = served.ask("POST", path, {"model": served.model.name, "messages": two})
            assert (answer.status, answer.error["message"]) == (400, "only one")
            assert answer.error["param"] == "messages"


def test_a_template_that_writes_nothing_gives_no_prompt(tmp_path: Path) -> None:
    from known_reply import write_model

    with serving(write_model(tmp_path / "m", "ABC", template="{{ '' }}")) as served:
        assert served.chat().error["message"] == "messages must give at least one token (got none)"
