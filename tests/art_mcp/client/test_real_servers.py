"""Scenarios for servers that nobody here wrote, each in an environment of its own; and our client on older SDKs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.client_environments import client_environment
from tests.support.mcp.real_servers import HEADER, SERVERS, RealServer, try_out

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
async def test_scenarios_for_a_real_server(
    server: RealServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if server.needs == "npx" and shutil.which("npx") is None:
        pytest.skip(f"{server.name} comes from npm, and npx is missing")
    row = await try_out(server, tmp_path)
    record_property(HEADER, str(row))
    assert row.tools >= server.tools
    assert len(row.found) >= server.kept, row.found.report()
    assert row.found.train
    assert row.found.held_out
    for one in row.found.scenarios:
        assert len(one.plan.observations) == len(one.plan.reference)


CONNECTION = (
    "cli", "client/connection", "client/test_connect.py", "client/test_capture.py", "client/test_reset.py",
    "scenarios/test_catalog.py", "specialization/test_verify.py",
)  # fmt: skip
"""What calls the SDK itself."""
OLDER_SDKS = {
    "mcp-1.24": ["mcp==1.24.0"],
    "mcp-1": ["mcp<2", "langchain-mcp-adapters==0.3.2"],  # 0.3.1 of the adapters wants mcp 2 and fails on import
}
"""Packages of older SDKs than the one that the tests themselves are run with. What is made of their answers, scenarios
and worlds, is the same on every SDK."""


def test_the_tests_are_run_with_the_newest_sdk() -> None:
    assert version("mcp").split(".")[0] == "2"


@pytest.mark.parametrize("name", OLDER_SDKS)
def test_the_client_works_on_older_sdks(name: str) -> None:
    python = client_environment(name, *OLDER_SDKS[name]) / "python"
    paths = [f"tests/art_mcp/{path}" for path in CONNECTION]
    done = subprocess.run(
        [str(python), "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", "-m", "not servers", "-q", "-n", "2",
         "--dist", "loadfile",
         "-o", "filterwarnings=default", *paths],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 60
