"""A server that all rollouts read from, and tools that do more than they say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from art_langgraph import Trajectory, rollout
from art_mcp import Server, connect
from tests.support.mcp.commands import NOTES
from tests.support.mcp.graphs import calling

pytestmark = pytest.mark.slow


async def ran(server: Server, *tools: str) -> Trajectory:
    return await rollout(calling(server, *((tool, {}) for tool in tools)), "go")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a").touch()
    return tmp_path / "notes"


async def test_a_reading_tool_that_writes_is_found_out_and_disturbs_no_other_run(
    notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect([*NOTES, "{world}"], worlds=notes) as server:
        await server.tools()
        runs = await asyncio.gather(*(ran(server, "list_notes", "count_visits", "list_notes") for _ in range(4)))
        for run in runs:
            assert [call.structured["result"] for call in run.tool_calls] == [["a"], 1, ["a", "visits"]]
            assert [change["what"] for change in run.metadata["world"]["changes"]] == ["content"]
        assert caplog.text.count("count_visits says that it only reads") == 1
        assert [call.structured["result"] for call in (await ran(server, "list_notes")).tool_calls] == [["a"]]
    assert [path.name for path in notes.iterdir()] == ["a"]


async def test_a_call_that_ends_the_server_fails_in_its_own_run_alone(notes: Path) -> None:
    async with connect([*NOTES, "{world}"], worlds=notes) as server:
        await server.tools()
        crashed, *others = await asyncio.gather(
            ran(server, "get_crash"), *(ran(server, "list_notes", "list_notes") for _ in range(3))
        )
        assert [call.failure for call in crashed.tool_calls] == ["closed"]
        assert [[call.failure for call in run.tool_calls] for run in others] == [[None, None]] * 3
