"""A model hub on loopback: the file API with listings, ranges and ETags, that can be told to misbehave."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FakeHub:
    """Files of one repository and what to do wrong. `requests` keeps (path, range header, authorization)."""

    files: dict[str, bytes]
    repository: str = "org/repo"
    cut_after: list[int] = field(default_factory=list)
    """Body lengths after which the next responses are cut, one each."""
    statuses: list[int] = field(default_factory=list)
    """Statuses to answer first, one each."""
    lie_about_digest: bool = False
    token: str = ""
    html: bool = False
    etag: str = '"v1"'
    url: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)

    def listing(self) -> bytes:
        entries = [
            {
                "type": "file",
                "path": path,
                "size": len(data),
                "lfs": {
                    "oid": "0" * 64 if self.lie_about_digest else hashlib.sha256(data).hexdigest(),
                    "size": len(data),
                    "pointerSize": 134,
                },
            }
            for path, data in self.files.items()
        ]
        return json.dumps([{"type": "directory", "path": "sub", "size": 0}, *entries]).encode()


@contextmanager
def running_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve `hub` on an ephemeral loopback port; `hub.url` says where."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

        def do_GET(self) -> None:
            byte_range = self.headers.get("Range", "")
            hub.requests.append((self.path, byte_range, self.headers.get("Authorization", "")))
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                return self.reply(401, b"{}")
            if self.path.startswith(f"/api/models/{hub.repository}/tree/main"):
                return self.reply(200, hub.listing(), kind="application/json")
            if hub.statuses:
                return self.reply(hub.statuses.pop(0), b"no")
            if hub.html:
                return self.reply(200, b"<html>log in</html>", kind="text/html")
            name = self.path.removeprefix(f"/{hub.repository}/resolve/main/")
            if name not in hub.files:
                return self.reply(404, b"not here")
            return self.send_file(hub.files[name], byte_range)

        def send_file(self, data: bytes, byte_range: str) -> None:
            start = 0
            if byte_range and self.headers.get("If-Range") == hub.etag:
                start = int(byte_range.removeprefix("bytes=").removesuffix("-"))
            body = data[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", hub.etag)
            self.send_header("Content-Type", "application/octet-stream")
            self.end_headers()
            if hub.cut_after:
                self.wfile.write(body[: hub.cut_after.pop(0)])
                self.wfile.flush()
                self.close_connection = True
                return
            self.wfile.write(body)

        def reply(self, status: int, body: bytes, kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
