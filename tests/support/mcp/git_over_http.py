"""A Git server over HTTP on this machine, which takes pushes from everybody, with push options."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.patience import PATIENCE


@contextmanager
def git_over_http(directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves the repositories in a directory by `git http-backend`.

    Yields:
        The URL of the directory, and the requests: `GET /up/info/refs?service=git-upload-pack`.
    """
    requests: list[str] = []
    settings = {"http.receivepack": "true", "receive.advertisePushOptions": "true", "safe.directory": "*"}
    env = {name: os.environ[name] for name in ("PATH", "HOME")}
    env |= {"GIT_PROJECT_ROOT": str(directory), "GIT_HTTP_EXPORT_ALL": "1", "GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.command} {self.path}")
            path, _, query = self.path.partition("?")
            cgi = {
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            done = subprocess.run(
                ["git", "http-backend"], input=body, capture_output=True, env=env | cgi, timeout=PATIENCE
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            lines = [line.partition(": ") for line in head.decode().splitlines()]
            status = next((value for name, _, value in lines if name == "Status"), "200")
            self.send_response(int(status.split()[0]))
            for name, _, value in lines:
                if name != "Status":
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()
        thread.join(PATIENCE)
