"""Commands that start the MCP servers of the tests, over stdio."""

from __future__ import annotations

import sys
from importlib.metadata import version

import pytest

from tests.support import SUPPORT

SERVER = [sys.executable, str(SUPPORT / "mcp" / "server.py")]
"""Adds, fails, hangs, crashes."""
ODD = [sys.executable, "-S", str(SUPPORT / "mcp" / "odd_server.py")]
"""Speaks the protocol by hand, and breaks it where asked."""
SHOP = [sys.executable, str(SUPPORT / "mcp" / "shop_server.py")]
"""Items with prices, a broken tool, a destructive one."""
SHELF = [sys.executable, str(SUPPORT / "mcp" / "shelf_server.py")]
"""Books."""
NOTES = [sys.executable, str(SUPPORT / "mcp" / "notes_server.py")]
"""Notes in a directory, which its argument names."""
MEMORY = [sys.executable, str(SUPPORT / "mcp" / "memory_server.py")]
"""Keeps in memory what it read when it started."""
MOODY = [sys.executable, str(SUPPORT / "mcp" / "moody_server.py")]
"""Is slow, refuses calls, remembers words by session."""
ROWS = [sys.executable, str(SUPPORT / "mcp" / "sql_server.py")]
"""SQL on a database, which its argument names."""
CALCULATOR = [sys.executable, str(SUPPORT / "mcp" / "calc_server.py")]
"""Computes, and works on nothing."""
SESSIONS = [sys.executable, str(SUPPORT / "mcp" / "session_server.py")]
"""Keeps in memory which tables of a directory, which its argument names, are open."""
HIDING = [sys.executable, str(SUPPORT / "mcp" / "hiding_server.py")]
"""Keeps its exceptions to itself and to its stderr. The files of a directory, which its argument names."""

needs_sdk_2 = pytest.mark.skipif(version("mcp").startswith("1."), reason="SDK 1 hides no exception of a tool")
"""Marks tests of HIDING."""
