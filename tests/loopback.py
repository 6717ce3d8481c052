"""An HTTP server on a free port of 127.0.0.1, for the length of a `with` block.

What the fake hub and the fake package index share. A request that fails prints nothing.
"""

import http.server
import threading
from types import TracebackType
from typing import Self


class Handler(http.server.BaseHTTPRequestHandler):
    """A subclass says what it answers; `owner` is the Loopback that serves."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a head and a body are two writes

    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass


class Loopback:
    """Serves from `__enter__` to `__exit__`; `closing` is set when it ends."""

    def __init__(self, handler: type[Handler]) -> None:
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), type("Bound", (handler,), {"owner": self}))
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
