"""Records and metrics: one record a request, no text in it, numbers that only grow."""

import errno
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from served import CHAT, COMPLETIONS, Served, serving

from caldrix.api import metrics
from caldrix.api.metrics import Counter, Histogram
from caldrix.api.records import Record
from caldrix.api.service import Settings
from caldrix.engine.line_log import LineLog
from caldrix.engine.telemetry import Level, Telemetry
from caldrix.http.messages import Exchange, Headers, RequestHead

SECRET = "tell-no-one"


def test_a_request_leaves_a_record_without_its_text(quick_path: Path) -> None:
    with serving(quick_path) as served:
        answer = served.ask(
            "POST",
            CHAT,
            {
                "model": served.model.name,
                "messages": [{"role": "user", "content": SECRET}],
                "seed": 5,
            },
            {"x-request-id": "mine"},
        )
        listed = served.get("/debug/requests")
        record = listed.json["requests"][0]
        assert listed.json["ring"] == 256
        assert SECRET not in listed.body.decode()
        assert "quick!" not in listed.body.decode()
        assert served.get("/debug/requests/mine").json == record
        assert served.get(f"/debug/requests/{answer.json['id']}").json == record
        assert served.get("/debug/requests/none").status == 404
    assert (record["id"], record["request_id"]) == (answer.json["id"], "mine")
    assert (record["state"], record["outcome"], record["status"]) == ("done", "ok", 200)
    assert record["finish_reason"] == "stop"
    assert record["prompt_tokens"] == answer.json["usage"]["prompt_tokens"]
    assert record["completion_tokens"] == answer.json["usage"]["completion_tokens"]
    assert record["sampling"]["seed"] == 5
    assert record["bytes_out"] > len(answer.body)
    assert record["host"]["total_ms"] >= record["host"]["ttft_ms"] > 0
    assert record["host"]["inter_token_ms"]["max"] > 0
    assert record["host"]["write_stall_ms"] == 0


def test_a_record_says_how_long_the_answer_waited_for_its_reader() -> None:
    head = RequestHead("POST", CHAT, CHAT, "", (1, 1), Headers([]), "::1")
    record = Record(head, "id", CHAT, "model")
    exchange = Exchange(head, 499, "stalled", 1, 2, 0.5, stalled_s=0.25)
    for told, expected in ((None, None), (exchange, 250.0)):
        host = record.body(told, Telemetry(Level.HOST))["host"]
        assert isinstance(host, dict)
        assert host["write_stall_ms"] == expected


def test_refused_requests_leave_records_too(quick_path: Path) -> None:
    with serving(quick_path) as served:
        served.chat(temperature=-1)
        served.complete("T", max_tokens=1, stream=True)
        last, first = served.get("/debug/requests").json["requests"]
        assert (first["id"], first["outcome"]) == (None, "client_error")
        assert (first["error_code"], first["status"]) == ("invalid_value", 400)
        assert first["host"]["ttft_ms"] is None
        assert last["stream"] is True
        only = served.get("/debug/requests?route=/v1/completions&state=done&limit=5").json
        assert [record["id"] for record in only["requests"]] == [last["id"]]
        assert len(served.get("/debug/requests?limit=1").json["requests"]) == 1


LONG_LIMIT = "limit=000000001" + "9" * 4400


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=257", "limit=x", "limit=", "state=other", LONG_LIMIT]
)
def test_a_query_out_of_range_is_refused(quick: Served, query: str) -> None:
    quick.chat(max_tokens=1)
    assert quick.get(f"/debug/requests?{query}").status == (200 if query == "limit=" else 400)


def test_a_state_that_there_is_not_is_refused_before_there_are_records(quick_path: Path) -> None:
    with serving(quick_path) as served:
        assert served.get("/debug/requests?state=other").status == 400
        assert served.get("/debug/requests?state=queued").json["requests"] == []


def test_a_record_is_found_by_an_escaped_id(quick_path: Path) -> None:
    with serving(quick_path) as served:
        body = {"model": served.model.name, "prompt": "T", "max_tokens": 1}
        served.ask("POST", "/v1/completions", body, {"X-Request-Id": "job:7"})
        assert served.get("/debug/requests/job%3A7").json["request_id"] == "job:7"


def test_a_running_request_is_seen(endless: Served) -> None:
    thread = threading.Thread(target=lambda: endless.chat(max_tokens=3000))
    thread.start()
    running: list[Any] = []
    while not running:
        running = endless.get("/debug/requests?state=running").json["requests"]
    slots = endless.get("/slots").json
    full = endless.get("/slots?fail_on_no_slot=1")
    endless.ask("POST", f"{CHAT}/{running[0]['id']}/cancel")
    thread.join(30)
    assert running[0]["status"] is None
    assert slots[0]["is_processing"] is True
    assert slots[0]["request_id"] == running[0]["id"]
    assert (full.status, full.error["code"]) == (503, "queue_full")
    assert 1 <= int(full.headers["retry-after"]) <= 30
    while endless.get("/slots").json[0]["state"] != "idle":  # when the step in flight is over
        pass
    assert endless.get("/slots?fail_on_no_slot=1").status == 200


def test_every_record_is_a_line_of_the_log(quick_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "log"
    line_log = LineLog(str(path), "--telemetry-log")
    with serving(quick_path, Settings(telemetry_log=line_log.write)) as served:
        served.chat(max_tokens=1)
        served.get("/v1/models")
        served.chat(temperature=-1)
        served.get("/v1/models")
    line_log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 400]


def test_with_telemetry_off_nothing_is_kept(quick_path: Path) -> None:
    with serving(quick_path, Settings(telemetry=Telemetry(Level.OFF))) as served:
        served.chat(max_tokens=1)
        assert served.get("/debug/requests").json["requests"] == []
        assert "_seconds_bucket" not in served.get("/metrics").body.decode()


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_the_counters_are_those_of_the_requests(quick_path: Path) -> None:
    with serving(quick_path) as served:
        before = served.get("/metrics")
        use = [served.chat(max_tokens=3).json["usage"] for _ in range(2)]
        served.chat(temperature=-1)
        served.get("/nothing")
        served.ask("BREW", "/v1/models")
        found = samples(served.get("/metrics").body.decode())
    assert before.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert samples(before.body.decode()).keys() <= found.keys()
    label = '{model="quick"}'
    assert found[f"caldrix_generation_tokens_total{label}"] == 6
    assert found[f"caldrix_prompt_tokens_total{label}"] == sum(u["prompt_tokens"] for u in use)
    assert found[f"caldrix_request_prompt_tokens_count{label}"] == 2
    requests = 'caldrix_requests_total{model="quick",route="/v1/chat/completions",outcome="%s"}'
    assert found[requests % "ok"] == 2
    assert found[requests % "client_error"] == 1
    assert found['caldrix_request_finish_total{model="quick",reason="length"}'] == 2
    responses = 'caldrix_http_responses_total{route="%s",method="%s",status="%d"}'
    assert found[responses % ("/v1/chat/completions", "POST", 400)] == 1
    assert found[responses % ("none", "GET", 404)] == 1
    assert found[responses % ("none", "other", 501)] == 1
    assert found["process_resident_memory_bytes"] > 1e6


def test_values_have_the_names_of_other_servers_too(quick_path: Path) -> None:
    with serving(quick_path) as served:
        served.chat(max_tokens=3)
        plain = served.get("/metrics").body.decode()
        vllm = samples(served.get("/metrics?compat=vllm").body.decode())
        llama = samples(served.get("/metrics?compat=llamacpp").body.decode())
    assert vllm['vllm:generation_tokens_total{model_name="quick"}'] == 3
    assert 0 < vllm['vllm:kv_cache_usage_perc{model_name="quick"}'] < 1
    assert llama["llamacpp:tokens_predicted_total"] == 3
    assert llama["llamacpp:requests_processing"] == 0
    assert "vllm:" not in plain
    assert "llamacpp:" not in plain


def test_without_descriptors_the_rest_is_told(
    quick: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("caldrix.api.metrics.os.listdir", none_left)
        answer = quick.get("/metrics")
    assert answer.status == 200
    assert b"process_cpu_seconds_total" in answer.body
    assert b"process_open_fds" not in answer.body


def test_bytes_that_were_no_request_are_counted(quick_path: Path) -> None:
    with serving(quick_path) as served:
        with socket.create_connection(("127.0.0.1", served.server.port)) as client:
            client.sendall(b"nonsense\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400")
        with socket.create_connection(("127.0.0.1", served.server.port)) as client:
            client.sendall(b"GET /hea")
        text = ""
        while "client_closed" not in text:
            text = served.get("/metrics").body.decode()
    assert 'caldrix_http_parse_errors_total{kind="request_line"} 1' in text


def test_a_client_that_leaves_a_reply_is_no_parse_error(endless_path: Path) -> None:
    with serving(endless_path, context=4096) as served:
        for stream in (True, False):
            body = {
                "model": served.model.name,
                "prompt": "A",
                "max_tokens": 1 << 20,
                "stream": stream,
            }
            data = json.dumps(body).encode()
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", served.server.port)) as client:
                client.sendall(head.encode() + data)
                while not served.get("/debug/requests?state=running").json["requests"]:
                    pass
            while served.get("/debug/requests?state=running").json["requests"]:
                pass
        text = served.get("/metrics").body.decode()
    assert 'outcome="cancelled"} 2' in text
    assert "parse_errors_total{" not in text


def test_the_text_format() -> None:
    counter = Counter("c_total", "help", ("a",))
    counter.add(1, 'q"\\\n')
    assert counter.lines((("m", "x"),)) == [r'c_total{m="x",a="q\"\\\n"} 1']
    histogram = Histogram("h", "help", (1.0, 2.5))
    for value in (0.5, 2.5, 3):
        histogram.observe(value)
    assert histogram.lines(()) == [
        'h_bucket{le="1"} 1',
        'h_bucket{le="2.5"} 2',
        'h_bucket{le="+Inf"} 3',
        "h_sum 6",
        "h_count 3",
    ]
    assert metrics.family("f", "counter", "help", []) == []
