"""A server over streamable HTTP, in a process of its own on a loopback port, while it is needed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer
from trainer_server.engines.vllm.command import free_port

START = 300.0
"""Seconds that a server may take until it listens. A download by npx counts."""

STOP = 10.0
"""Seconds that it may take to end after TERM."""

_INHERITED = ("HOME", "PATH", "LANG")


@asynccontextmanager
async def http_process(
    server: BenchmarkServer, world: Path, seed: int
) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Starts a server over HTTP in a copy of its world, and ends it when the block is left.

    Args:
        server: A server with an endpoint. It must read its world, a directory, anew for each call, or work on nothing.
        world: An empty directory for the world and its copy.
        seed: Seed of the world.

    Yields:
        Its URL, and a function that makes the copy as it was.

    Raises:
        RuntimeError: It ended or did not listen in time. The message has the end of what it wrote.
    """
    original, copy = world / "original", world / "copy"
    original.mkdir()
    if server.world:
        original = await asyncio.to_thread(server.world, original, seed)
        copy /= original.name

    def reset() -> None:
        copy.mkdir(parents=True, exist_ok=True)
        for path in copy.iterdir():  # the server may have the directory itself open
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(original, copy, symlinks=True, dirs_exist_ok=True)

    reset()
    port = free_port()

    def filled(word: str) -> str:
        return word.replace("{world}", str(copy)).replace("{port}", str(port))

    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env |= {name: filled(value) for name, value in server.env.items()}
    words = await asyncio.to_thread(server.command)
    with (world / "server.log").open("w+") as log:
        process = subprocess.Popen(
            [filled(word) for word in words],
            cwd=copy,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            await _wait(process, port, world / "server.log")
            yield f"http://127.0.0.1:{port}{server.endpoint}", reset
        finally:
            await asyncio.to_thread(_end, process)


async def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Waits until the port is open. Raises RuntimeError if the process ends before, or it takes too long."""
    end = time.monotonic() + START
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            await asyncio.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not listen on port {port}; it wrote:\n{log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and whatever it has started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(STOP)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
