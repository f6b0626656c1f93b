"""server-everything: whatever the protocol has, for tests of clients. It works on nothing."""

from __future__ import annotations

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx

SERVER = BenchmarkServer(
    "everything", lambda: npx("@modelcontextprotocol/server-everything"), env=npm_cache(), use="development"
)
