"""Recorded answers: offline, the same every time, and safe from kills."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import gather, rollout
from art_mcp import Cassette, MCPError, connect
from tests.support.mcp.commands import ODD
from tests.support.mcp.graphs import calling
from trainer_server.wire import ConfigError

NOBODY = [sys.executable, "-c", "raise SystemExit(1)"]


async def record(path: Path, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    async with connect(ODD, cassette=Cassette(path, "record")) as server:
        await server.tools()
        return [(await server.call(tool, arguments)).text for tool, arguments in calls]


async def test_a_replay_needs_no_server(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    await record(path, ("echo", {"text": "a"}), ("picture", {}), ("missing", {}))
    async with connect(NOBODY, cassette=Cassette(path, "replay")) as server:
        assert (server.name, server.version, server.instructions) == ("odd", "0.9", "Handle with care.")
        assert len(await server.tools()) == 10
        echo = await server.call("echo", {"text": "a"})
        assert (echo.text, echo.structured, echo.is_error) == ("a", {"echo": "a"}, False)
        assert (await server.call("picture", {})).content[0]["bytes"] == 7
        missing = await server.call("missing", {})
        assert (missing.is_error, missing.failure) == (True, "protocol")


async def test_a_miss_is_an_error_or_goes_live(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    await record(path, ("echo", {"text": "a"}))
    async with connect(ODD, cassette=Cassette(path, "replay")) as server:
        miss = await server.call("echo", {"text": "b"})
        assert (miss.is_error, miss.failure) == (True, "missing")
        assert '"text": "b"' in miss.text
        with pytest.raises(MCPError):
            await server.read("memo://1")
    async with connect(ODD, cassette=Cassette(path, "auto")) as server:
        assert (await server.call("echo", {"text": "b"})).text == "b"
    async with connect(NOBODY, cassette=Cassette(path, "replay")) as server:
        assert (await server.call("echo", {"text": "b"})).text == "b"


async def test_the_same_call_gets_its_answers_in_order_and_then_the_last(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    assert await record(path, ("count", {}), ("echo", {"text": "a"}), ("count", {})) == ["1", "a", "2"]
    async with connect(NOBODY, cassette=Cassette(path, "replay")) as server:
        assert [(await server.call("count", {})).text for _ in range(3)] == ["1", "2", "2"]


async def test_every_rollout_begins_at_the_start_of_the_tape(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    await record(path, ("count", {}), ("count", {}))
    async with connect(NOBODY, cassette=Cassette(path, "replay")) as server:
        groups = await gather(calling(server, ("count", {}), ("count", {})), ["a"], n=3, progress=False)
    assert [[call.result for call in run.tool_calls] for run in groups[0].trajectories] == [["1", "2"]] * 3


async def test_an_answer_depends_on_the_calls_before_it(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    async with connect(ODD, isolation="session", cassette=Cassette(path, "record")) as server:
        await rollout(calling(server, ("count", {}), ("count", {}), ("count", {})), "x")
        await rollout(calling(server, ("grow", {}), ("count", {})), "x")
    async with connect(NOBODY, cassette=Cassette(path, "replay")) as server:
        grown = await rollout(calling(server, ("grow", {}), ("count", {})), "x")
        assert [call.result for call in grown.tool_calls] == ["changed", "1"]


async def test_numbers_and_the_order_of_keys_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    await record(path, ("echo", {"text": "a", "n": 1}))
    async with connect(NOBODY, cassette=Cassette(path, "replay")) as server:
        assert (await server.call("echo", {"n": 1.0, "text": "a"})).text == "a"


async def test_a_line_cut_short_by_a_kill_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tape.jsonl"
    await record(path, ("echo", {"text": "a"}), ("echo", {"text": "b"}))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    async with connect(ODD, cassette=Cassette(path, "auto")) as server:
        assert (await server.call("echo", {"text": "b"})).text == "b"
    assert "skipped: " in caplog.text
    assert "line 6 is not JSON" in caplog.text
    assert path.read_bytes().startswith(whole[:-20])
    async with connect(NOBODY, cassette=Cassette(path, "replay")) as server:
        assert [(await server.call("echo", {"text": one})).text for one in "ab"] == ["a", "b"]
    assert all(json.loads(line)["method"] for line in path.read_text().splitlines()[:3])


async def test_every_text_is_recorded_and_replayed(tmp_path: Path) -> None:
    path, odd = tmp_path / "tape.jsonl", "a\u2028b\x85c\x1c"
    await record(path, ("echo", {"text": odd}))
    assert path.stat().st_mode & 0o777 == 0o600
    async with connect(NOBODY, cassette=Cassette(path, "replay")) as server:
        assert (await server.call("echo", {"text": odd})).text == odd
        assert "\\ud83d" in (await server.call("echo", {"text": "\ud83d"})).text


async def test_what_is_no_answer_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    await record(path, ("stop", {}))
    assert "stop" not in [json.loads(line)["params"].get("name") for line in path.read_text().splitlines()]


def test_a_replay_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no cassette"):
        Cassette(tmp_path / "none.jsonl", "replay")
    with pytest.raises(ConfigError, match="mode='play'"):
        Cassette(tmp_path / "none.jsonl", "play")  # type: ignore[arg-type]
