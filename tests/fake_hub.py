"""A model hub on loopback: serves repos from memory, counts what is asked, and misbehaves on order.

Speaks as much of the Hub's protocol as its client library asks for: the listing of a revision,
HEAD and GET of a file with ranges, ETags and error codes. A fault is a function that may answer a
request by itself and then returns True.
"""

import hashlib
import json
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import loopback

BIG = (".safetensors", ".gguf")
CHUNK = 65536


def blob_sha1(data: bytes) -> str:
    """git's name for a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def commit_of(repo: str) -> str:
    """The one commit of a repo of the fake hub."""
    return hashlib.sha1(repo.encode()).hexdigest()


@dataclass
class Asked:
    """One request as the hub saw it."""

    method: str
    path: str
    token: str | None
    range: str | None


Fault = Callable[["Handler", str, str], bool]


@dataclass
class Behaviour:
    """What may go wrong; changed by a test while the hub runs."""

    fault: Fault | None = None  # (handler, "list" or "file", file name)
    cuts: int = 0  # how many GETs of a big file end after cut_at of it
    cut_at: float = 0.4
    ranges: bool | int = True  # False: ignored; 416: refused
    reset: bool = False  # a cut is a reset of the connection, not an early end
    chunk_wait: float = 0.0  # seconds between chunks of a big file
    token: str | None = None  # needed for everything, when set


class Handler(loopback.Handler):
    owner: "FakeHub"

    def answer(
        self, status: int, body: bytes = b"", head: dict[str, str] | None = None,
        kind: str = "application/json",
    ) -> bool:  # fmt: skip
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (head or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def do_GET(self) -> None:
        hub = self.owner
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        hub.asked.append(Asked(self.command, self.path, token, self.headers.get("Range")))
        path = unquote(urlsplit(self.path).path)
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if listing:
            self._list(listing[1], listing[2], token)
        elif file:
            self._file(file[1], file[2], file[3], token)
        else:
            self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def _is_refused(self, repo: str, revision: str, token: str | None) -> bool:
        wanted = self.owner.behaviour.token
        if wanted and token != wanted:
            return self.answer(401, b"{}", {"X-Error-Message": "Invalid username or password."})
        if repo not in self.owner.repos:
            return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", "refs/pr/1", commit_of(repo)):
            return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        return False

    def _list(self, repo: str, revision: str, token: str | None) -> None:
        fault = self.owner.behaviour.fault
        if (fault and fault(self, "list", "")) or self._is_refused(repo, revision, token):
            return
        siblings = []
        for name, data in self.owner.repos[repo].items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data)}
            entry["blobId"] = blob_sha1(data)
            if name.endswith(BIG):
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        body = {"id": repo, "modelId": repo, "sha": commit_of(repo), "siblings": siblings}
        self.answer(200, json.dumps(body).encode())

    def _file(self, repo: str, revision: str, name: str, token: str | None) -> None:
        behaviour = self.owner.behaviour
        fault = behaviour.fault
        if (fault and fault(self, "file", name)) or self._is_refused(repo, revision, token):
            return
        data = self.owner.repos[repo].get(name)
        if data is None:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"}, "text/plain")
            return
        head = self.owner.file_head(repo, name)
        status = 200
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if asked and self.command == "GET" and behaviour.ranges:
            start = int(asked[1])
            if behaviour.ranges == 416 and behaviour.ranges is not True:
                self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            status, head["Content-Range"] = 206, f"bytes {start}-{len(data) - 1}/{len(data)}"
            data = data[start:]
        self._send(status, data, head, name.endswith(BIG))

    def _send(self, status: int, data: bytes, head: dict[str, str], is_big: bool) -> None:
        behaviour = self.owner.behaviour
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for key, value in head.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        end = len(data)
        if is_big and behaviour.cuts > 0:
            behaviour.cuts -= 1
            end = int(len(data) * behaviour.cut_at)
            self.close_connection = True
        try:
            for start in range(0, end, CHUNK):
                self.wfile.write(data[start : min(start + CHUNK, end)])
                if is_big and behaviour.chunk_wait:
                    self.owner.closing.wait(behaviour.chunk_wait)
        except OSError:
            self.close_connection = True
        if end < len(data) and behaviour.reset:
            self.owner.reset(self)


class FakeHub(loopback.Loopback):
    """`repos` maps a repo id to its files; `url` is its HF_ENDPOINT."""

    def __init__(self, repos: dict[str, dict[str, bytes]]) -> None:
        super().__init__(Handler)
        self.repos = repos
        self.behaviour = Behaviour()
        self.asked: list[Asked] = []

    def file_head(self, repo: str, name: str) -> dict[str, str]:
        """The headers that the Hub sends with a file, or with a redirect to one."""
        data = self.repos[repo][name]
        is_big = name.endswith(BIG)
        etag = f'"{hashlib.sha256(data).hexdigest() if is_big else blob_sha1(data)}"'
        head = {"X-Repo-Commit": commit_of(repo), "ETag": etag, "Accept-Ranges": "bytes"}
        return head | ({"X-Linked-ETag": etag, "X-Linked-Size": str(len(data))} if is_big else {})

    def gets(self, suffix: str) -> list[Asked]:
        """The GET requests for files whose name ends so."""
        return [a for a in self.asked if a.method == "GET" and a.path.endswith(suffix)]

    @staticmethod
    def reset(handler: Handler) -> None:
        """Ends a connection with a reset instead of an orderly close."""
        handler.wfile.flush()
        linger = struct.pack("ii", 1, 0)
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        handler.connection.close()
