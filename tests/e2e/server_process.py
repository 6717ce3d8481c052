"""A server in a process of its own, as users run it, and plain sockets to treat it badly.

Every wait has a limit, so that a server that hangs is a failure and not a test that never ends.
"""

import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAULTY = Path(__file__).resolve().parent / "faulty_server.py"
LIMIT_S = 30.0
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class ServerProcess:
    """`faults` as in faulty_server.py; killed at the end of the `with` block if it still runs.

    `port`, a free one, is for those who do not wait until it serves.
    """

    def __init__(
        self,
        model: Path | str,
        *flags: str,
        faults: dict[str, Any] | None = None,
        n_files: int = 0,
        port: int = 0,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __exit__)
        command = [sys.executable, str(FAULTY), json.dumps(faults or {}), str(model)]
        command += ["--threads", "1", "--port", str(port), *flags]
        self.process = subprocess.Popen(
            command,
            stderr=self._errors,
            preexec_fn=(lambda: limit_files(n_files)) if n_files else None,
        )
        self.name = model if isinstance(model, str) else model.name.removesuffix(".gguf")
        self._clients: list[socket.socket] = []
        self.port = port
        if not port:
            self.wait_until_it_serves()

    def wait_until_it_serves(self) -> None:
        wait_until(lambda: "serving" in self.stderr() or self.process.poll() is not None)
        assert self.process.poll() is None, self.stderr()
        self.port = int(self.stderr().splitlines()[-1].rsplit(":", 1)[1])

    def wait_until_it_loads(self) -> None:
        """Until the address is answered, by which the model must not be ready yet."""
        wait_until(lambda: accepts(self.port) or self.process.poll() is not None)
        assert self.process.poll() is None, self.stderr()
        assert self.get("/health")[1]["status"] == "loading"

    def stderr(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self.process.kill()
        self.process.wait()
        self._errors.close()

    def ends(self, limit_s: float = LIMIT_S) -> int:
        """Its exit status, soon."""
        return self.process.wait(limit_s)

    def stops(self) -> None:
        """Ends on SIGTERM as it should, and without a traceback."""
        self.process.send_signal(signal.SIGTERM)
        assert self.ends() == 0, self.stderr()
        assert "Traceback" not in self.stderr()
        assert "bug" not in self.stderr()

    def n_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * resource.getpagesize() / 2**20

    # Requests

    def connect(self, receive_bytes: int = 0) -> socket.socket:
        client = socket.socket()
        client.settimeout(LIMIT_S)
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._clients.append(client)
        client.connect(("127.0.0.1", self.port))
        return client

    def leave(self) -> None:
        """Closes what tests have opened and not closed."""
        while self._clients:
            self._clients.pop().close()

    def body(self, max_tokens: int = 4, **fields: Any) -> bytes:
        given = {"model": self.name, "prompt": "a\n", "max_tokens": max_tokens, **fields}
        return post("/v1/completions", given)

    def opened(self, max_tokens: int, n_bytes: int = 1, **fields: Any) -> socket.socket:
        """A stream of which at least `n_bytes` have come."""
        client = self.connect()
        client.sendall(self.body(max_tokens, stream=True, **fields))
        while n_bytes > 0:
            n_bytes -= len(client.recv(4096))
        return client

    def ask(self, request: bytes) -> tuple[int, Any]:
        with self.connect() as client:
            client.sendall(request)
            return whole_answer(client)

    def get(self, path: str) -> tuple[int, Any]:
        return self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    def gauge(self, name: str) -> float:
        text = self.get("/metrics")[1]
        values = [line for line in text.splitlines() if line.startswith(name + "{")]
        return float(values[0].rsplit(" ", 1)[1])

    def is_idle(self) -> bool:
        names = ("caldrix_requests_running", "caldrix_requests_waiting")
        return not any(self.gauge(name) for name in names)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def limit_files(n_files: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, n_files))


def post(path: str, fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def whole_answer(client: socket.socket) -> tuple[int, Any]:
    """Status, and JSON or text."""
    file = client.makefile("rb")
    status = int(file.readline().split()[1])
    fields = {}
    while line := file.readline().strip():
        name, value = line.decode().split(": ", 1)
        fields[name.lower()] = value
    if "content-length" not in fields:
        return status, dechunked(file)
    data = file.read(int(fields["content-length"])).decode()
    return status, json.loads(data) if "json" in fields["content-type"] else data


def dechunked(file: Any) -> str:
    """The text of a stream, as far as it comes."""
    parts = []
    while size := int(file.readline() or b"0", 16):
        parts.append(file.read(size))
        file.readline()
    return b"".join(parts).decode()


def events(text: str) -> list[Any]:
    """The events of a stream that ended as it should, without the last."""
    parts = [part for part in text.split("\n\n") if part and not part.startswith(":")]
    assert parts.pop() == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def said(text: str) -> str:
    choices = [choice for event in events(text) for choice in event.get("choices", [])]
    return "".join(choice["text"] for choice in choices)


def wait_until(is_so: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
