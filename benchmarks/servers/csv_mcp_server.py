"""csv-mcp-server on a folder of tables of a small airline. It keeps what it has loaded in sessions of its process."""

from __future__ import annotations

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.tablebridge import make_airline

SERVER = BenchmarkServer(
    "csv-mcp-server", lambda: [pypi("csv-editor", "csv-mcp-server==1.0.0")], make_airline, {"HOME": "{world}"}
)
