"""A log that nobody reads: the replies go on, and so does the end."""

import fcntl
import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import FAULTY, LIMIT_S

pytestmark = pytest.mark.slow

PIPE_BYTES = 4096
REQUEST_ID = "r" * 120
TLS = b"\x16\x03\x01\x00\x05hello"  # leaves a status line


def test_a_stderr_that_is_not_read_stops_no_reply(abc: Path) -> None:
    command = [sys.executable, str(FAULTY), "{}", str(abc), "--threads", "1", "--port", "0"]
    server = subprocess.Popen([*command, "--access-log", "on"], stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        fcntl.fcntl(server.stderr.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        line = b""
        while b"serving" not in line:
            line = server.stderr.readline()
        port = int(line.rsplit(b":", 1)[1])
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        for _ in range(100):  # three times what the pipe holds
            client.request("GET", "/health", headers={"X-Request-Id": REQUEST_ID})
            answer = client.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"status":"ok"}')
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as other:
            other.sendall(TLS)
            assert other.recv(1) == b""
        client.request("GET", "/health")
        assert client.getresponse().status == 200
        client.close()
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT_S) == 0
        said = server.stderr.read().decode().splitlines()
        assert said[0].startswith("caldrix: GET /health 200 ")
        assert said[0].endswith(REQUEST_ID)
    finally:
        server.kill()
        server.wait()
        assert server.stderr is not None
        server.stderr.close()
