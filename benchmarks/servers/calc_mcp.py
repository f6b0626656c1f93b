"""@coo-quack/calc-mcp: mathematics, dates, units, encodings. It works on nothing: its world is an empty directory."""

from __future__ import annotations

from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx


def make_nothing(where: Path, seed: int) -> Path:
    """Makes an empty directory.

    Args:
        where: Where it is made.
        seed: Changes nothing.

    Returns:
        The directory.
    """
    directory = where / "nothing"
    directory.mkdir()
    return directory


SERVER = BenchmarkServer("calc-mcp", lambda: npx("@coo-quack/calc-mcp@2.1.1"), make_nothing, npm_cache())
