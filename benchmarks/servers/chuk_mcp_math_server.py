"""chuk-mcp-math-server over HTTP: functions of arithmetic. It works on nothing."""

from __future__ import annotations

from benchmarks.servers.server import BenchmarkServer, pypi

SERVER = BenchmarkServer(
    "chuk-mcp-math-server",
    lambda: [
        pypi("chuk-mcp-math-server", "chuk-mcp-math-server==0.3.3"),
        *("--transport", "http", "--host", "127.0.0.1", "--port", "{port}", "--domains", "arithmetic"),
    ],
    endpoint="/mcp",
)
