"""`art-langgraph scenarios`, with a real MCP server."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art_langgraph.cli.main import build
from tests.support.mcp.commands import HIDING, SERVER, SHELF, needs_sdk_2
from tests.support.mcp.originals import make_database
from tests.support.servers.judge_app import endpoint


@pytest.mark.slow
def test_scenarios_that_cannot_be_tried_are_said_to_be_so(tmp_path: Path) -> None:
    words = ["scenarios", shlex.join(SERVER), "-n", "2", "-o", str(tmp_path / "found.jsonl")]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 1
    assert "not called, as they may change something: add" in result.output
    assert "found.jsonl is not written" in result.output
    assert not (tmp_path / "found.jsonl").exists()


@needs_sdk_2
@pytest.mark.slow
def test_each_tool_that_is_not_covered_has_a_reason_and_a_remedy(tmp_path: Path) -> None:
    words = ["scenarios", shlex.join(HIDING), "--env", "WEATHER_KEY=0123456789", "--seconds", "60", "--json"]
    result = CliRunner().invoke(build(), [*words, "-o", str(tmp_path / "found.jsonl")])
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["file"], told["scenarios"]) == (None, 0)
    assert (told["coverage"]["covered"], told["coverage"]["partly"]) == ([], [])
    tools = {entry["tool"]: entry for entry in told["coverage"]["not"]}
    assert set(tools) == {"get_weather", "get_file", "get_session", "get_reason"}
    assert "(the server wrote meanwhile: KeyError: 'city')" in tools["get_weather"]["reason"]
    assert tools["get_weather"]["remedy"] == "--resource town=town.txt, a file with one value on each line"
    assert "[WEATHER_KEY] is over" in tools["get_session"]["reason"]
    assert "--world PATH" in tools["get_reason"]["remedy"]
    assert "0123456789" not in result.output
    assert "warning: only 0 of 4 tools are covered" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_small_talk_alone_is_no_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("litellm", reason="models by name are asked through litellm")
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    thanks = [{"task": f"Thanks, {name}!", "difficulty": 1, "calls": [], "asks": []} for name in ("Ada", "Bo")]
    talk = [{**each, "reply": "talk", "answer": "You are welcome."} for each in thanks]
    with endpoint(json.dumps({"scenarios": talk})) as writer:
        words = ["scenarios", shlex.join(SHELF), "-n", "2", "--model", "writer", "--model-url", writer.url]
        result = CliRunner().invoke(build(), [*words, "-o", str(tmp_path / "found.jsonl")])
    assert result.exit_code == 1
    assert "2 scenarios: " in result.stdout
    assert f"no scenario calls a tool: {tmp_path / 'found.jsonl'} is not written" in result.stdout.replace("\n", " ")
    assert "tools: 0 covered, 0 partly, 3 not (of 3)" in result.stdout
    assert "written to" not in result.stdout
    assert not list(tmp_path.glob("found*"))


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
