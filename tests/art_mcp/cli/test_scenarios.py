"""`art-langgraph scenarios`, with a real MCP server."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art_langgraph.cli.main import build
from tests.support.mcp.commands import SERVER
from tests.support.mcp.originals import make_database


@pytest.mark.slow
def test_scenarios_that_cannot_be_tried_are_said_to_be_so(tmp_path: Path) -> None:
    words = ["scenarios", shlex.join(SERVER), "-n", "2", "-o", str(tmp_path / "found.jsonl")]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 1
    assert "not called, as they may change something: add" in result.output
    assert "found.jsonl is not written" in result.output
    assert not (tmp_path / "found.jsonl").exists()


def test_a_path_in_a_world_that_is_a_file_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    make_database(tmp_path / "lib.db").close()
    for word in ("{world}/lib.db", "--db={world:lib.db}/lib.db", f"sqlite:///{tmp_path}/lib.db/lib.db"):
        words = ["scenarios", f"no-such-server {word}", "--world", str(tmp_path / "lib.db")]
        result = CliRunner().invoke(build(), [*words, "-o", str(tmp_path / "found")])
        assert result.exit_code not in (0, None)
        said = f"{result.output}{result.exception}".replace("\n", " ")
        assert f"is the file {tmp_path}/lib.db itself: write {{world:lib.db}} alone" in said
    assert [path.name for path in tmp_path.iterdir()] == ["lib.db"]
