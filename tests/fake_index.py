"""A package index on loopback, and tiny wheels to put on it."""

import hashlib
import io
import zipfile

import loopback

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


class FakeIndex(loopback.Loopback):
    """Serves `files` (file name to bytes) of any package; `url` is for PIP_INDEX_URL."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(Handler)
        self.url += "/simple"
        self.files = files
        self.digests: dict[str, str] = {}  # where another than the right one
        self.cut: int | None = None  # bytes of a file after which the connection ends
        self.chunk_wait = 0.0
        self.asked: list[str] = []

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


class Handler(loopback.Handler):
    owner: FakeIndex

    def do_GET(self) -> None:
        self.owner.asked.append(self.path)
        folder, _, name = self.path.strip("/").partition("/")
        body = self.owner.page(name) if folder == "simple" else self.owner.files.get(name)
        is_file = folder == "files"
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Type", "application/zip" if is_file else "text/html")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self._send(body or b"", is_file)

    def _send(self, body: bytes, is_file: bool) -> None:
        end = len(body) if self.owner.cut is None or not is_file else self.owner.cut
        try:
            for start in range(0, end, CHUNK):
                self.wfile.write(body[start : min(start + CHUNK, end)])
                if is_file and self.owner.chunk_wait:
                    self.owner.closing.wait(self.owner.chunk_wait)
        except OSError:
            self.close_connection = True
        if end < len(body):
            self.close_connection = True
