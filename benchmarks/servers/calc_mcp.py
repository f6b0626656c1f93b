"""@coo-quack/calc-mcp: mathematics, dates, units, encodings. It works on nothing."""

from __future__ import annotations

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx

SERVER = BenchmarkServer("calc-mcp", lambda: npx("@coo-quack/calc-mcp@2.1.1"), env=npm_cache())
