"""Load on a server that this starts itself: rude clients, health, what is left, overhead, stalls.

    python tools/bench_http.py [load] [overhead] [--seconds N] [--connections N] [--model DIR]

`load`: many connections, of which one in ten reads slowly and one request in five is left at a
random moment; every answer that is read to its end is compared with the same request alone. Beside
it another process times /health and how late its own sleeps end (the noise of the machine).
`overhead`: tokens per second through SSE to one client, beside the engine with no server. In both
the server measures its event loop (watched_server.py). Exits 1 on a wrong answer or a leak; times
are printed with what is wanted, since a shared machine has its own.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

HOST = "127.0.0.1"
SLOW_SHARE, VANISH_SHARE = 0.1, 0.2
CONTEXT = 1024
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection

PROBE = """
import json, socket, sys, time
out = {"health_ms": [], "late_ms": []}
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
    end = time.monotonic() + float(sys.argv[2])
    while (now := time.monotonic()) < end:
        s.sendall(b"GET /health HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        assert s.recv(65536).startswith(b"HTTP/1.1 200 ")
        asleep = time.monotonic()
        out["health_ms"].append((asleep - now) * 1e3)
        time.sleep(0.02)
        out["late_ms"].append((time.monotonic() - asleep - 0.02) * 1e3)
print(json.dumps(out))
"""
ENGINE = """
import asyncio, sys, time
from pathlib import Path
from caldrix import inferno
async def main(path, n):
    model = inferno.load_model(Path(path), inferno.LoadOptions(max_context=1024), lambda _: None)
    engine = inferno.Engine(model.program)
    await engine.start()
    for wanted in (32, n):
        started = time.perf_counter()
        request = inferno.Request(tuple(range(65, 85)), max_tokens=wanted)
        generation = engine.submit(request)
        async for _ in generation:
            pass
    print(generation.n_completion / (time.perf_counter() - started))
    await engine.close()
    model.program.close()
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class Server:
    """`caldrix serve` on a free port, in a process that watches its loop; for a `with` block."""

    def __init__(self, model: Path, *flags: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._figures = Path(self._folder.name) / "figures.json"
        self._errors = Path(self._folder.name) / "stderr"
        command = [sys.executable, str(ROOT / "tools/watched_server.py"), str(self._figures)]
        command += [str(model), "--port", "0", "--ctx", str(CONTEXT), *flags]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(command, stderr=errors, env=environment())
        self.name = model.name
        self.port = self._wait_for_port()

    def _wait_for_port(self) -> int:
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            lines = self.stderr().splitlines()
            if lines and "serving" in lines[-1]:
                return int(lines[-1].rsplit(":", 1)[1])
            time.sleep(0.05)
        self.__exit__()
        sys.exit(f"bench_http: the server did not start: {self.stderr()[-400:]}")

    def stderr(self) -> str:
        return self._errors.read_text(errors="replace")

    def complaints(self) -> list[str]:
        """What it said beyond what every start says."""
        usual = ("caldrix: compiled ", "caldrix: serving ", "caldrix: backend ")
        return [line for line in self.stderr().splitlines() if not line.startswith(usual)]

    def figures(self) -> dict[str, Any]:
        """Of the event loop since the last call."""
        self._figures.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        while not self._figures.exists():
            if self.process.poll() is not None:
                sys.exit(f"bench_http: the server ended: {self.stderr()[-400:]}")
            time.sleep(0.01)
        figures: dict[str, Any] = json.loads(self._figures.read_text())
        return figures

    def rss_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")

    def get(self, path: str) -> bytes:
        return asyncio.run(ask(self.port, head("GET", path, b"")))[1]

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                print("FAIL the server did not end on SIGTERM")


def head(method: str, path: str, body: bytes) -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{length}\r\n".encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of one answer; the connection stays usable."""
    top = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(top.split(b" ", 2)[1])
    if b"content-length: " in top:
        n_bytes = int(top.split(b"content-length: ")[1].split(b"\r\n")[0])
        return status, await reader.readexactly(n_bytes)
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return status, body


async def ask(port: int, request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request)
    answer = await read_answer(reader)
    writer.close()
    return answer


def requests(model: str) -> list[bytes]:
    """Chat and completions, streamed and not, greedy and seeded, short and long."""
    made = []
    for index in range(32):
        fields: dict[str, object] = {"model": model, "max_tokens": 4 + 3 * (index % 9)}
        if index % 2:
            fields["stream"] = True
        if index % 3 == 0:
            fields |= {"temperature": 1.0, "seed": index, "top_k": 40}
        text = f"{index} is a number. " * (1 + index % 7)
        if index % 4 < 2:
            fields["messages"] = [{"role": "user", "content": text}]
            path = "/v1/chat/completions"
        else:
            fields["prompt"] = text
            path = "/v1/completions"
        made.append(head("POST", path, json.dumps(fields).encode()))
    return made


def essence(status: int, body: bytes) -> object:
    """An answer without what differs from one time to the next: id, created, what was cached."""
    if status != 200:
        return status, body.decode()
    if body.startswith(b"data: "):
        events = body.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""], "the stream does not end in [DONE]"
        return [json.loads(e.removeprefix("data: "))["choices"] for e in events[:-2] if e[0] == "d"]
    answer = json.loads(body)
    answer["usage"].pop("prompt_tokens_details", None)
    return answer["choices"], answer["usage"]


class Load:
    """The clients, all in one loop, and what they saw."""

    def __init__(self, port: int, bodies: list[bytes], alone: list[object], seconds: float) -> None:
        self.port, self.bodies, self.alone = port, bodies, alone
        self.end = time.monotonic() + seconds
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self, n_connections: int) -> None:
        clients = [self._client(i, i < n_connections * SLOW_SHARE) for i in range(n_connections)]
        await asyncio.gather(*clients)

    async def _client(self, number: int, is_slow: bool) -> None:
        chance = random.Random(number)
        await asyncio.sleep(chance.random())
        while time.monotonic() < self.end:
            try:
                await self._connection(chance, is_slow)
            except (OSError, EOFError, asyncio.IncompleteReadError) as error:
                self.seen["broken"] += 1
                self.wrong.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.1)

    async def _connection(self, chance: random.Random, is_slow: bool) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        if is_slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        await asyncio.get_running_loop().sock_connect(sock, (HOST, self.port))
        limit = 512 if is_slow else 65536
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
        try:
            while time.monotonic() < self.end:
                index = chance.randrange(len(self.bodies))
                if chance.random() < VANISH_SHARE:
                    await self._vanish(chance, sock, reader, writer, self.bodies[index])
                    return
                writer.write(self.bodies[index])
                answer = read_slowly(reader) if is_slow else read_answer(reader)
                self._judge(index, *await answer, is_slow)
        finally:
            writer.transport.abort()

    async def _vanish(
        self,
        chance: random.Random,
        sock: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        body: bytes,
    ) -> None:
        """Leaves at any moment: inside the request, while it waits, inside the answer."""
        self.seen["vanished"] += 1
        cut = chance.choice((0, len(body) // 3, len(body) - 1, len(body), len(body)))
        writer.write(body[:cut])
        if cut == len(body):
            await asyncio.sleep(chance.random() * 0.5)
            if chance.random() < 0.5:
                await reader.read(300)
        if chance.random() < 0.5:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def _judge(self, index: int, status: int, body: bytes, is_slow: bool) -> None:
        if status == 429:
            self.seen["busy"] += 1
            return
        self.seen["slow" if is_slow else "whole"] += 1
        if essence(status, body) != self.alone[index]:
            self.wrong.append(f"request {index}: {status} {body[:300]!r}")


async def read_slowly(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """At most 100 bytes at a time, a twentieth of a second apart."""
    held = asyncio.StreamReader()
    answer = asyncio.ensure_future(read_answer(held))
    while not answer.done():
        data = await reader.read(100)
        held.feed_data(data) if data else held.feed_eof()
        await asyncio.sleep(0.05)
    return await answer


async def watch(server: Server, until: float) -> list[float]:
    """RSS, every ten seconds."""
    seen = [server.rss_mb()]
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(10.0, left))
        seen.append(server.rss_mb())
    return seen


def shown(times: list[float]) -> str:
    ordered = sorted(times)
    parts = [(q, ordered[min(len(ordered) - 1, int(len(ordered) * q))]) for q in (0.5, 0.99, 0.999)]
    return " ".join(f"p{q * 100:g} {v:.1f}" for q, v in parts) + f" p100 {ordered[-1]:.1f} ms"


def leftovers(server: Server, before: dict[str, Any]) -> list[str]:
    """What is still there once everybody has left: nothing, or its names."""
    end = time.monotonic() + 15
    while True:
        now = server.figures()
        found = [k for k in ("n_tasks", "n_descriptors") if now[k] > before[k]]
        slots = json.loads(server.get("/slots"))
        found += ["slots"] if any(s["is_processing"] for s in slots) else []
        for line in server.get("/metrics").decode().splitlines():
            if line.startswith(("caldrix_requests_running", "caldrix_requests_waiting")):
                found += [line] if float(line.rsplit(" ", 1)[1]) else []
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.5)


def load(model: Path, seconds: float, n_connections: int) -> bool:
    with Server(model, "--queue-depth", str(n_connections + 56)) as server:
        bodies = requests(server.name)
        alone = [essence(*asyncio.run(ask(server.port, body))) for body in bodies]
        server.get("/slots")
        before = server.figures()
        probe = subprocess.Popen(
            [sys.executable, "-c", PROBE, str(server.port), str(seconds)], stdout=subprocess.PIPE
        )
        clients = Load(server.port, bodies, alone, seconds)

        async def both() -> list[float]:
            rss = asyncio.ensure_future(watch(server, clients.end))
            await clients.run(n_connections)
            return await rss

        rss = asyncio.run(both())
        during = server.figures()
        times = json.loads(probe.communicate()[0] or b"null")
        left = leftovers(server, before)
        after = server.rss_mb()
        lines = server.complaints()
    print(f"load: {n_connections} connections, {seconds:g} s, {dict(clients.seen)}")
    print(f"  answers unlike the same request alone: {len(clients.wrong)} {clients.wrong[:3]}")
    print(f"  /health {shown(times['health_ms'])} (wanted: under 50)")
    print(f"  noise   {shown(times['late_ms'])} (how late the probe's own sleeps end)")
    print(f"  RSS every 10 s {[round(v, 1) for v in rss]} MB, at the end {after:.1f}")
    print_stalls(during)
    print(f"  left behind: {left or 'nothing'}; stderr: {lines or 'nothing'}")
    return not (clients.wrong or left or lines)


def print_stalls(figures: dict[str, Any]) -> None:
    stalls = " ".join(f"{whole} ({cpu})" for whole, cpu in figures["stalls_ms"])
    print(f"  longest stalls of the loop: {stalls} ms (on the processor; wanted: under 20)")
    print(f"  {figures['n_turns']} turns, longest collection {figures['collection_ms']} ms")


def sse_speed(port: int, model: str, n: int) -> float:
    """Tokens a second, from the request to [DONE]."""
    fields = {"model": model, "prompt": list(range(65, 85)), "max_tokens": n, "stream": True}
    fields |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
    data = b""
    with socket.create_connection((HOST, port)) as client:
        started = time.perf_counter()
        client.sendall(head("POST", "/v1/completions", json.dumps(fields).encode()))
        parts = []
        while b"[DONE]" not in data[-64:]:
            parts.append(client.recv(1 << 16))
            data = (data + parts[-1])[-2048:]
        seconds = time.perf_counter() - started
    usage = data[data.rindex(b'"completion_tokens":') :].split(b":")[1].split(b",")[0]
    return int(usage) / seconds


def overhead(model: Path, seconds: float) -> bool:
    n = CONTEXT - 100
    engine, served = [], []
    with Server(model) as server:
        sse_speed(server.port, server.name, 32)
        server.figures()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            command = [sys.executable, "-c", ENGINE, str(model), str(n)]
            engine.append(float(subprocess.check_output(command, env=environment())))
            served.append(sse_speed(server.port, server.name, n))
        stalls = server.figures()
    ratios = [a / b for a, b in zip(served, engine, strict=True)]
    ratio = statistics.median(ratios)
    print(f"overhead: {len(ratios)} rounds of {n} tokens, {seconds:g} s")
    for name, speeds in (("engine", engine), ("SSE", served)):
        print(f"  {name} {statistics.median(speeds):.0f} t/s, at best {max(speeds):.0f}")
    print(
        f"  ratio {ratio:.2f}, of the best {max(served) / max(engine):.2f} (wanted: at least 0.60)"
    )
    print_stalls(stalls)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="load on a server that this starts itself")
    parser.add_argument("parts", nargs="*", metavar="load|overhead")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--model", type=Path, help="a directory (default: a tiny model)")
    options = parser.parse_args()
    is_sound = True
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model is None:
            import tiny

            model = tiny.write_model(Path(folder) / "tiny", tiny.MODELS[0])
        if "load" in options.parts or not options.parts:
            is_sound &= load(model, options.seconds, options.connections)
        if "overhead" in options.parts or not options.parts:
            is_sound &= overhead(model, options.seconds)
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
