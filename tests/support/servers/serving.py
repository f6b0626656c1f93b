"""ASGI apps on real sockets. Apart from conftest.py, so that environments without the trainer server can use it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.support.patience import PATIENCE


@contextmanager
def serving(app: Any, port: int = 0, **settings: Any) -> Iterator[str]:
    """Serves an ASGI app on a real socket, in a thread. port: 0 takes any; another one may have been served before.
    settings: of uvicorn."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2, **settings))
    thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listener]),), daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
