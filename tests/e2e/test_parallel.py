"""`--parallel N`: replies decoded together are, byte for byte, those that each gets alone.

One server answers a list of requests one by one; another, with --parallel 8, answers them all at
once, in another order and among clients that leave. Every type of weights that the tiny models can
have is served; one and two threads.
"""

import json
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_gguf
from server_process import ServerProcess, events, post, reset, wait_until

N_CLIENTS = 24  # three for each slot: most wait in the queue for one
QUANT_TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"]
FLAGS = ("--ctx", "768", "--queue-depth", "64")


def model_file(directory: Path, kind: str, name: str = "qwen3") -> Path:
    path = directory / f"{kind}.gguf"
    model = next(m for m in tiny.MODELS if m.name == name)
    tiny_gguf.write_gguf(path, model, {"proj": kind, "embed": kind, "lm_head": kind})
    return path


def requests(seed: int = 5) -> list[dict[str, Any]]:
    """Prompts of one row, of several, of more than a step takes; greedy and drawn, with scores."""
    chance = random.Random(seed)
    found: list[dict[str, Any]] = []
    for size in (1, 2, 7, 31, 32, 33, 64, 200, 255, 256, 257, 600):
        letters = "".join(chance.choice("abcdefgh \n") for _ in range(size))
        found.append({"prompt": letters, "max_tokens": chance.randint(1, 40)})
        drawn = {"temperature": 1.5, "seed": size, "top_p": 0.9, "logprobs": 3}
        found.append({"prompt": letters, "max_tokens": chance.randint(4, 40), **drawn})
    shared = "the same beginning of all " * 4
    found += [{"prompt": shared + str(i), "max_tokens": 12, "logprobs": 1} for i in range(6)]
    found.append({"prompt": "of three", "n": 3, "seed": 4, "temperature": 2, "max_tokens": 9})
    found.append({"prompt": ["one", "and two"], "max_tokens": 9, "presence_penalty": 1.0})
    found.append({"prompt": shared, "echo": True, "logprobs": 2, "max_tokens": 3})
    found.append({"prompt": "x", "repetition_penalty": 1.3, "logit_bias": {"97": 5}})
    return [{"max_tokens": 16, **fields} for fields in found]


def whole(server: ServerProcess, fields: dict[str, Any]) -> Any:
    """What must not depend on company: all but names, times and what a slot happened to hold."""
    status, answer = server.ask(post("/v1/completions", {"model": server.name, **fields}))
    assert status == 200, answer
    usage = answer["usage"]
    for choice in answer["choices"]:
        if not any(
            choice.get("logprobs", {}).values()
        ):  # of a reply without text: a stream has none
            choice.pop("logprobs", None)
    return answer["choices"], usage["prompt_tokens"], usage["completion_tokens"]


def streamed(server: ServerProcess, fields: dict[str, Any]) -> Any:
    """The same as `whole` of what a stream's pieces add up to."""
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    body = {"model": server.name, **fields, **stream}
    status, text = server.ask(post("/v1/completions", body))
    assert status == 200, text
    choices: dict[int, dict[str, Any]] = {}
    for event in events(text):
        usage = event.get("usage")
        for part in event["choices"]:
            into = choices.setdefault(part["index"], {"index": part["index"], "text": ""})
            into["text"] += part["text"]
            into["finish_reason"] = part["finish_reason"]
            for name, values in part.get("logprobs", {}).items():
                into.setdefault("logprobs", {}).setdefault(name, []).extend(values)
    ordered = [choices[index] for index in sorted(choices)]
    return ordered, usage["prompt_tokens"], usage["completion_tokens"]


def leave_early(server: ServerProcess, n_bytes: int) -> None:
    """A stream that its client gives up: before it begins, or in the middle."""
    body = {"model": server.name, "prompt": "z" * 400, "max_tokens": 300, "stream": True}
    with socket.create_connection(("127.0.0.1", server.port), 30) as client:
        client.sendall(post("/v1/completions", body))
        if n_bytes:
            client.recv(n_bytes)
        reset(client)


def alone(path: Path, asked: list[dict[str, Any]]) -> list[Any]:
    with ServerProcess(path, *FLAGS, "--prefix-cache", "off") as server:
        return [whole(server, fields) for fields in asked]


def together(server: ServerProcess, asked: list[dict[str, Any]], seed: int) -> list[Any]:
    """All at once: whole, streamed, in an order of chance; some clients leave meanwhile."""
    chance = random.Random(seed)
    found: list[Any] = [None] * len(asked)

    def answer(i: int, way: Callable[[ServerProcess, dict[str, Any]], Any]) -> None:
        found[i] = way(server, asked[i])

    work: list[Callable[[], None]] = []
    for i in range(len(asked)):
        way = chance.choice([whole, streamed])
        work.append(lambda i=i, way=way: answer(i, way))  # type: ignore[misc]
    for _ in range(len(asked) // 3):
        n_bytes = chance.choice([0, 0, 1, 900])
        work.append(lambda n_bytes=n_bytes: leave_early(server, n_bytes))  # type: ignore[misc]
    chance.shuffle(work)
    with ThreadPoolExecutor(N_CLIENTS) as clients:
        for done in [clients.submit(one) for one in work]:
            done.result(60)
    return found


def check(path: Path, *flags: str, seed: int = 1) -> None:
    asked = requests()
    expected = alone(path, asked)
    with ServerProcess(path, *FLAGS, "--parallel", "8", *flags) as server:
        assert together(server, asked, seed) == expected
        wait_until(server.is_idle)
        assert server.gauge("caldrix_slots") == 8
        n_steps = server.gauge("caldrix_decode_batch_size_count")
        assert server.gauge("caldrix_decode_batch_size_sum") > n_steps  # some were shared
        server.stops()


def test_replies_together_are_those_alone(tmp_path: Path) -> None:
    check(model_file(tmp_path, "Q4_1"), "--threads", "2")


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUANT_TYPES)
def test_of_every_type_of_weights(kind: str, tmp_path: Path) -> None:
    for seed, threads in ((2, "1"), (3, "2")):
        check(model_file(tmp_path, kind), "--threads", threads, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("model", tiny.MODELS, ids=lambda m: m.name)
def test_of_every_architecture(model: tiny.Tiny, dtype: str, tmp_path: Path) -> None:
    path = tiny.write_model(tmp_path / model.name, model)
    asked = requests()
    with ServerProcess(path, *FLAGS, "--dtype", dtype, "--prefix-cache", "off") as server:
        expected = [whole(server, fields) for fields in asked]
    with ServerProcess(path, *FLAGS, "--dtype", dtype, "--parallel", "16") as server:
        assert together(server, asked, seed=4) == expected


def test_as_many_replies_run_as_there_are_slots(abc: Path) -> None:
    """Three streams run side by side, the fourth waits; /props and /slots say so."""
    flags = ("--parallel", "3", "--queue-depth", "1")
    with ServerProcess(abc, *flags, faults={"decode_s": 0.003}) as server:
        streams = [server.opened(1900) for _ in range(3)]
        wait_until(lambda: server.gauge("caldrix_requests_running") == 3)
        assert server.get("/props")[1]["total_slots"] == 3
        slots = server.get("/slots")[1]
        assert [(slot["id"], slot["is_processing"]) for slot in slots] == [
            (0, True),
            (1, True),
            (2, True),
        ]
        assert {slot["n_ctx"] for slot in slots} == {2048}
        assert server.get("/slots?fail_on_no_slot=1")[0] == 503
        waiting = server.connect()
        waiting.sendall(server.body(4))
        wait_until(lambda: server.gauge("caldrix_requests_waiting") == 1)
        assert server.gauge("caldrix_requests_running") == 3
        assert server.ask(server.body(4))[0] == 429
        reset(streams[1])
        assert waiting.recv(12) == b"HTTP/1.1 200"
        server.leave()
        wait_until(server.is_idle)
        assert server.get("/slots?fail_on_no_slot=1")[0] == 200
        server.stops()


@pytest.mark.slow
def test_storms_of_clients_leave_nothing_behind(tmp_path: Path) -> None:
    """Connections that come, ask, and reset by the hundred, while two clients keep asking."""
    path = model_file(tmp_path, "Q8_0")
    asked = requests()[:12]
    expected = alone(path, asked)
    with ServerProcess(path, *FLAGS, "--parallel", "8", "--threads", "2") as server:
        before = server.n_descriptors()
        wrong: list[Any] = []
        over = threading.Event()

        def storm(seed: int) -> None:
            chance = random.Random(seed)
            while not over.is_set():
                leave_early(server, chance.choice([0, 0, 1, 300, 2000]))

        storms = [threading.Thread(target=storm, args=(seed,)) for seed in range(12)]
        for thread in storms:
            thread.start()
        try:
            for _ in range(4):
                for fields, wanted in zip(asked, expected, strict=True):
                    status, answer = server.ask(
                        post("/v1/completions", {"model": server.name, **fields})
                    )
                    if status == 429:  # the storm has the queue
                        continue
                    if status != 200 or answer["choices"] != wanted[0]:
                        wrong.append((status, fields, json.dumps(answer)[:500]))
        finally:
            over.set()
            for thread in storms:
                thread.join()
        assert wrong == []
        wait_until(server.is_idle, 10)
        wait_until(lambda: server.n_descriptors() <= before + 1, 10)
        assert [whole(server, fields) for fields in asked] == expected
        server.stops()
