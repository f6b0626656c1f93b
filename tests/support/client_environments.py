"""Environments that have the client and nothing of the server, as `pip install .` makes them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from testbed.environments import environment

ROOT = Path(__file__).parents[2]
TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "psutil", "uvicorn")
"""What our tests run with."""


def client_environment(name: str = "", *packages: str) -> Path:
    """The `bin` directory of an environment made by `pip install .` alone; or, with a name, of a copy of it that has
    our test tools and other packages besides. Tests put the client itself as it is now before what was installed."""
    recipe = json.dumps(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    client = environment("client", str(ROOT), marker=recipe, compiled=True)
    if not name:
        return client
    return environment(f"client-{name}", *packages, *TOOLS, marker=recipe, begin_with=client)
