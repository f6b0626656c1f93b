"""Servers that are reset before each rollout."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from art_langgraph import rollout
from art_mcp import connect
from art_mcp.client.connection.sdk import Progress
from art_mcp.client.reset import AfterReset, ResetQueue
from tests.support.mcp.commands import NOTES
from tests.support.mcp.graphs import calling
from tests.support.patience import PATIENCE
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
    queue = ResetQueue("sh -c 'echo one; echo two >&2; exit 3'")
    with pytest.raises(MCPError, match=r"failed: exit status 3: two"):
        await queue.begin()
    queue = ResetQueue("no-such-command-anywhere")
    with pytest.raises(MCPError, match=r"failed: .*'no-such-command-anywhere'"):  # the reason is the system's
        await queue.begin()


async def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_mcp.client.reset.TIMEOUT", 0.05)
    with pytest.raises(MCPError, match=r"no end within 0\.05 s"):
        await ResetQueue("sleep 600").begin()


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
            queue = ResetQueue(f"http://127.0.0.1:{server.server_port}/reset")
            await queue.begin()
            queue.end()
            with pytest.raises(MCPError, match="HTTP 503"):
                await queue.begin()
        finally:
            server.shutdown()
            thread.join()
    assert (asked, queue.resets) == (["/reset", "/reset"], 1)


def test_a_reset_that_is_no_command_is_refused() -> None:
    for wrong in ("", "echo 'open"):
        with pytest.raises(ConfigError, match="--reset"):
            ResetQueue(wrong)


class Nothing:
    """A source that answers everything with nothing."""

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        return {}

    async def changes(self) -> None:
        return None

    async def close(self) -> None:
        pass


async def test_a_call_that_outlives_its_rollout_gets_no_turn() -> None:
    queue = ResetQueue(lambda: None)
    await queue.begin()
    late = AfterReset(Nothing(), queue, "late")
    call = asyncio.create_task(late.request("tools/call", {}))
    await asyncio.sleep(0)
    await late.close()
    queue.end()
    with pytest.raises(MCPError, match="is over"):
        await call
    async with asyncio.timeout(PATIENCE):
        await queue.begin()


async def test_a_rollout_that_waits_for_itself_is_told_who_has_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_mcp.client.reset.PATIENCE", 0.02)
    queue = ResetQueue(lambda: None)
    await queue.begin("outer")
    with pytest.raises(MCPError, match=r"outer has had the server for 0\.02 s.*inside of another"):
        await queue.begin("inner")
    queue.end()
    await queue.begin("next")


async def test_a_function_that_blocks_does_not_stop_the_loop() -> None:
    go, went = Event(), []
    begun = asyncio.create_task(ResetQueue(lambda: went.append(go.wait(PATIENCE))).begin())
    await asyncio.sleep(0)
    go.set()
    await begun
    assert went == [True]


async def test_a_command_that_leaves_a_process_in_the_background_has_ended(tmp_path: Path) -> None:
    script = f"sleep {2 * PATIENCE} & echo $! > {shlex.quote(str(tmp_path / 'pid'))}"
    async with asyncio.timeout(PATIENCE):
        await ResetQueue(shlex.join(["sh", "-c", script])).begin()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


async def test_an_error_without_a_message_is_named() -> None:
    def fail() -> None:
        raise LookupError

    with pytest.raises(MCPError, match=r"the reset \(fail\) failed: LookupError"):
        await ResetQueue(fail).begin()
