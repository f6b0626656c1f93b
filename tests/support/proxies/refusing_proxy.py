"""A proxy that refuses every request, as one in a company does for addresses that it does not know."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

VARIABLES = tuple(f"{scheme}_proxy" for scheme in ("http", "https", "all", "no"))


@dataclass(slots=True)
class RefusingProxy:
    """A running proxy. `asked`: method and address of each request that it got."""

    port: int = 0
    status: str = "403 Forbidden"
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process behind it, which have a password."""
        names = [name for scheme in VARIABLES[:3] for name in (scheme, scheme.upper())]
        return dict.fromkeys(names, f"http://user:pass-word@127.0.0.1:{self.port}")


@contextmanager
def refusing_proxy() -> Iterator[RefusingProxy]:
    """Such a proxy on a port of its own."""
    proxy = RefusingProxy()

    class Refusal(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline().decode()
            proxy.asked.append(line.rpartition(" ")[0])
            while self.rfile.readline().strip():
                pass
            head = (
                f"HTTP/1.1 {proxy.status}\r\nContent-Type: text/html\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
            )
            self.wfile.write(f"{head}no".encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Refusal) as server:
        proxy.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield proxy
        finally:
            server.shutdown()


def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the variables of a proxy from the environment, in upper and lower case."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
