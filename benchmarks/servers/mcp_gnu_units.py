"""mcp-gnu-units: conversions between units. It works on nothing: its world is an empty directory."""

from __future__ import annotations

from benchmarks.servers.calc_mcp import make_nothing
from benchmarks.servers.server import BenchmarkServer, pypi

SERVER = BenchmarkServer(
    "mcp-gnu-units", lambda: [pypi("mcp-gnu-units", "mcp-gnu-units==0.1.1")], make_nothing, use="seen"
)
