"""mcp-server-time: the time in zones of the world. It works on nothing."""

from __future__ import annotations

from benchmarks.servers.server import BenchmarkServer
from benchmarks.tasks.time_zones import TABLES, server_command

SERVER = BenchmarkServer("time", server_command, tables=TABLES, use="development")
