"""The command line, in this process."""

from __future__ import annotations

import concurrent.futures
from typing import Any

from typer.testing import CliRunner

from art_langgraph.cli.main import build


def art(*words: str, typed: str | None = None) -> Any:
    """In this process, but in a thread: a command starts an event loop of its own. typed: what it is answered."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(CliRunner().invoke, build(), list(words), typed).result(120)
