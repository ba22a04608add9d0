"""A small model hub on the loopback that speaks what `huggingface_hub` asks for: listings and whole
files.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def tag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


class Hub:
    """`stall_after`: bytes of one answer after which it stops sending, as a broken line does."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[str] = []
        self.stall_after: int | None = None
        self.stalled = threading.Event()
        self.closing = threading.Event()
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._file(send=False)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if "/resolve/" in path:
            self._file(send=True)
        elif not path.startswith("/api/models/") or path.startswith("/api/models/org/missing"):
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "none"})
        elif "/tree/" in path:
            files = [
                {"type": "file", "path": name, "size": len(data), "oid": tag(data)}
                for name, data in self.hub.files.items()
            ]
            self._json(files)
        else:
            siblings = [{"rfilename": n, "size": len(d)} for n, d in self.hub.files.items()]
            self._json({"id": "org/name", "sha": COMMIT, "siblings": siblings})

    def _json(self, body: object) -> None:
        self._answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _file(self, send: bool) -> None:
        name = self.path.split("/resolve/")[1].split("/", 1)[1]
        data = self.hub.files[name]
        if send:
            self.hub.asked.append(name)
        headers = {
            "ETag": f'"{tag(data)}"',
            "X-Repo-Commit": COMMIT,
        }
        self._answer(200, data, headers, send)

    def _answer(self, code: int, body: bytes, headers: dict[str, str], send: bool = True) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if not send:
            return
        limit = self.hub.stall_after
        if limit is None or len(body) <= limit:
            self.wfile.write(body)
            return
        self.wfile.write(body[:limit])
        self.wfile.flush()
        self.hub.stalled.set()
        self.hub.closing.wait(60)

    def log_message(self, *_: object) -> None:
        """The test's output is not the place for it."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is what some tests are about."""


@contextmanager
def hub_serving(files: dict[str, bytes]) -> Iterator[Hub]:
    hub = Hub(files)
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
