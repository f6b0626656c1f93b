"""A server over HTTP has a process of its own, in a copy of its world."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.servers.http_process import http_process
from benchmarks.servers.server import BenchmarkServer


def make_page(where: Path, seed: int) -> Path:
    (where / "site").mkdir()
    (where / "site" / "page.txt").write_text(f"seed {seed}")
    return where / "site"


async def test_a_reset_makes_the_world_as_it_was(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", "{world}"]
    server = BenchmarkServer("pages", lambda: words, make_page, endpoint="/page.txt")
    async with http_process(server, tmp_path, 7) as (url, reset):
        assert httpx.get(url).text == "seed 7"
        copy = tmp_path / "copy" / "site"
        (copy / "page.txt").write_text("changed")
        (copy / "more").mkdir()
        assert httpx.get(url).text == "changed"
        reset()
        assert httpx.get(url).text == "seed 7"
        assert [path.name for path in copy.iterdir()] == ["page.txt"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


async def test_a_server_that_ends_at_once_says_why(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "raise SystemExit('no licence')"]
    server = BenchmarkServer("broken", lambda: words, endpoint="/mcp")
    with pytest.raises(RuntimeError, match="no licence"):
        async with http_process(server, tmp_path, 0):
            pass
