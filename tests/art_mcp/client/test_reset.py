"""Servers that are reset before each rollout."""

from __future__ import annotations

import asyncio
import shlex
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from art_langgraph import rollout
from art_mcp import connect
from art_mcp.client.reset import Turns
from tests.support.mcp.commands import NOTES
from tests.support.mcp.graphs import calling
from trainer_server.wire import ConfigError, MCPError


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


@pytest.mark.slow
async def test_each_run_begins_after_a_reset_and_waits_for_the_one_before(notes: Path) -> None:
    script = f"import pathlib; [path.unlink() for path in pathlib.Path({str(notes)!r}).iterdir()]"
    async with connect([*NOTES, str(notes)], reset=shlex.join([sys.executable, "-c", script])) as server:
        assert server.serial
        assert server.disposable
        await server.call("write_note", {"path": f"{notes}/left", "text": ""})
        calls = [("list_notes", {}), ("write_note", {"path": f"{notes}/b", "text": ""}), ("list_notes", {})]
        runs = await asyncio.gather(*(rollout(calling(server, *calls), "go") for _ in range(3)))
        assert [[call.structured for call in run.tool_calls][::2] for run in runs] == [
            [{"result": []}, {"result": ["b"]}]
        ] * 3
        assert "world" not in runs[0].metadata


@pytest.mark.slow
async def test_a_reset_that_fails_is_an_answer_that_never_came_and_the_next_run_tries_again(notes: Path) -> None:
    tried = []

    async def reset() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise OSError("the database is down")

    async with connect([*NOTES, str(notes)], reset=reset) as server:
        first = await rollout(calling(server, ("list_notes", {})), "go")
        assert first.tool_calls[0].failure == "closed"
        assert "the reset (reset) failed: the database is down" in str(first.tool_calls[0].result)
        second = await rollout(calling(server, ("list_notes", {})), "go")
        assert (second.tool_calls[0].is_error, len(tried)) == (False, 2)


async def test_a_command_that_fails_says_what_it_wrote_last() -> None:
    turns = Turns("sh -c 'echo one; echo two >&2; exit 3'")
    with pytest.raises(MCPError, match=r"failed: exit status 3: two"):
        await turns.begin()
    turns = Turns("no-such-command-anywhere")
    with pytest.raises(MCPError, match="No such file"):
        await turns.begin()


async def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_mcp.client.reset.TIMEOUT", 0.05)
    with pytest.raises(MCPError, match=r"no end within 0\.05 s"):
        await Turns("sleep 600").begin()


async def test_a_url_is_sent_a_post() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(200 if len(asked) == 1 else 503)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            turns = Turns(f"http://127.0.0.1:{server.server_port}/reset")
            await turns.begin()
            turns.end()
            with pytest.raises(MCPError, match="HTTP 503"):
                await turns.begin()
        finally:
            server.shutdown()
            thread.join()
    assert (asked, turns.resets) == (["/reset", "/reset"], 1)


def test_a_reset_that_is_no_command_is_refused() -> None:
    for wrong in ("", "echo 'open"):
        with pytest.raises(ConfigError, match="--reset"):
            Turns(wrong)
