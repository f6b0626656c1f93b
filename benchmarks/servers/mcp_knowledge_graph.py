"""@itseasy21/mcp-knowledge-graph on a file of entities and relations."""

from __future__ import annotations

from benchmarks.servers.graph import make_graph
from benchmarks.servers.server import BenchmarkServer, npm_cache, npx

SERVER = BenchmarkServer(
    "mcp-knowledge-graph",
    lambda: [*npx("@itseasy21/mcp-knowledge-graph@1.0.7"), "--memory-path", "{world}"],
    make_graph,
    npm_cache(),
)
