"""`art-langgraph scenarios`, with a real MCP server."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art_langgraph.cli.main import build
from tests.support.mcp.commands import SERVER


@pytest.mark.slow
def test_scenarios_that_cannot_be_tried_are_said_to_be_so(tmp_path: Path) -> None:
    words = ["scenarios", shlex.join(SERVER), "-n", "2", "-o", str(tmp_path / "found.jsonl")]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 1
    assert "not called, as they may change something: add" in result.output
