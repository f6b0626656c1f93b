"""A small HTTP server that writes down what a program sends, in place of a tracing system."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Sent:
    """A request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def parts(self) -> dict[str, Any]:
        """The JSON values of a multipart body, by the name of their part."""
        body = self.body
        if self.headers.get("content-encoding") == "zstd":
            import zstandard

            body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        found = {}
        for part in message_from_bytes(head + body, policy=HTTP).iter_parts():
            name = part.get_param("name", header="content-disposition")
            found[str(name)] = json.loads(part.get_payload(decode=True))
        return found


@dataclass(slots=True)
class Recorded:
    """A running server: its address, and the requests until now."""

    url: str
    requests: list[Sent] = field(default_factory=list)
    status: int = 200
    """What every request is answered with."""

    def to(self, path: str) -> list[Sent]:
        """The requests to a path, or to one below it."""
        return [sent for sent in self.requests if sent.path.startswith(path)]


@contextmanager
def recording(answers: Mapping[str, Any] | None = None) -> Iterator[Recorded]:
    """Serves on a free port.

    Args:
        answers: JSON by path; any other path is answered with `{}`.
    """
    recorded = Recorded("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.read_body()
            path = self.path.partition("?")[0]
            headers = {name.lower(): value for name, value in self.headers.items()}
            recorded.requests.append(Sent(self.command, path, headers, body))
            said = json.dumps((answers or {}).get(path, {})).encode()
            self.send_response(recorded.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def read_body(self) -> bytes:
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        do_GET = do_POST = do_PUT = do_PATCH = answer

        def log_message(self, *words: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    recorded.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield recorded
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
