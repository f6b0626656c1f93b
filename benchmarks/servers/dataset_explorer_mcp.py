"""dataset-explorer-mcp on a folder of tables of a small airline: it summarizes them and changes nothing."""

from __future__ import annotations

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.tablebridge import make_airline

SERVER = BenchmarkServer(
    "dataset-explorer-mcp",
    lambda: [pypi("dataset-explorer-mcp", "dataset-explorer-mcp==0.2.2", "mcp<2")],
    make_airline,
    {"HOME": "{world}"},
)
