"""clinical-calc-mcp: formulas of medicine. It works on nothing: its world is an empty directory."""

from __future__ import annotations

from benchmarks.servers.calc_mcp import make_nothing
from benchmarks.servers.server import BenchmarkServer, pypi

SERVER = BenchmarkServer(
    "clinical-calc-mcp", lambda: [pypi("clinical-calc-mcp", "clinical-calc-mcp==0.1.0")], make_nothing
)
