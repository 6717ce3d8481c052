"""A package index on loopback, and tiny wheels to put on it."""

import hashlib
import http.server
import io
import threading
import zipfile
from dataclasses import dataclass, field
from types import TracebackType

CHUNK = 65536


def make_wheel(
    name: str, version: str, files: dict[str, bytes], *, compress: bool = False
) -> bytes:
    """The bytes of a wheel that pip accepts."""
    info = f"{name}-{version}.dist-info"
    parts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for path, data in (files | parts).items():
            archive.writestr(path, data)
    return buffer.getvalue()


@dataclass
class FakeIndex:
    """Serves `files` (file name to bytes) of any package; `url` is for PIP_INDEX_URL."""

    files: dict[str, bytes] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)  # where another than the right one
    cut: int | None = None  # bytes of a file after which the connection ends
    chunk_wait: float = 0.0
    asked: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        handler = type("BoundHandler", (Handler,), {"index": self})
        self._server = Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/simple"

    def __enter__(self) -> "FakeIndex":
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

    def page(self, package: str) -> bytes | None:
        """The list of a package's files, as the simple index writes it."""
        stem = package.replace("-", "_")
        names = [n for n in self.files if n.lower().startswith((f"{stem}-", f"{package}-"))]
        if not names:
            return None
        links = []
        for name in names:
            digest = self.digests.get(name) or hashlib.sha256(self.files[name]).hexdigest()
            links.append(f'<a href="/files/{name}#sha256={digest}">{name}</a><br>')
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    index: FakeIndex

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.index.asked.append(self.path)
        folder, _, name = self.path.strip("/").partition("/")
        body = self.index.page(name) if folder == "simple" else self.index.files.get(name)
        is_file = folder == "files"
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Type", "application/zip" if is_file else "text/html")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self._send(body or b"", is_file)

    def _send(self, body: bytes, is_file: bool) -> None:
        end = len(body) if self.index.cut is None or not is_file else self.index.cut
        try:
            for start in range(0, end, CHUNK):
                self.wfile.write(body[start : min(start + CHUNK, end)])
                if is_file and self.index.chunk_wait:
                    self.index.closing.wait(self.index.chunk_wait)
        except OSError:
            self.close_connection = True
        if end < len(body):
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass
