"""Rollouts in worlds of their own, on a real server over stdio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from art_langgraph import Trajectory, rollout
from art_mcp import Cassette, Server, connect
from art_mcp.client.copies.pool import AHEAD
from art_mcp.scenarios.execute import rollout_of_its_own
from art_mcp.worlds.change import Change
from tests.support.mcp.commands import NOTES
from tests.support.mcp.graphs import calling
from tests.support.mcp.originals import digest
from trainer_server.wire import ConfigError, MCPError

pytestmark = pytest.mark.slow

A = "/world/notes/a.txt"
READ = ("read_note", {"path": A})
PROCESS: tuple[str, dict[str, Any]] = ("get_process", {})


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("first\n")
    return tmp_path / "notes"


@asynccontextmanager
async def connected(notes: Path, *words: str, **options: Any) -> AsyncIterator[Server]:
    """The server in a world of notes. At the end the original is as it was, and no copy is left."""
    before = digest(notes)
    async with connect([*NOTES, *(words or ("{world}",))], worlds=notes, **options) as server:
        yield server
    assert digest(notes) == before
    assert server.world
    assert server.world.in_use == 0
    assert [path.name for path in (notes.parent / "cache" / "worlds").iterdir()] == ["lock"]


async def ran(server: Server, *calls: tuple[str, dict[str, Any]]) -> Trajectory:
    trajectory = await rollout(calling(server, *calls), "go")
    assert trajectory.error is None
    return trajectory


def changes(trajectory: Trajectory) -> list[str]:
    return [str(Change.model_validate(change)) for change in trajectory.metadata["world"]["changes"]]


async def test_runs_at_the_same_time_do_not_disturb_one_another(notes: Path) -> None:
    async with connected(notes) as server:
        runs = await asyncio.gather(
            *(ran(server, ("write_note", {"path": "/world/notes/b", "text": f"{n}"}), READ) for n in range(4))
        )
        assert [changes(run) for run in runs] == [[f"/world/notes/b: content is new: {n}"] for n in range(4)]
        assert {run.tool_calls[0].result for run in runs} == {"written to /world/notes/b"}
        assert {run.tool_calls[0].arguments["path"] for run in runs} == {"/world/notes/b"}
        assert all(run.tool_calls[1].structured == {"path": A, "text": "first\n"} for run in runs)
        outside = await server.call("list_notes", {})
        assert outside.text == "a.txt"
        assert server.world
        assert server.world.made >= 5


async def test_paths_are_aliases_wherever_they_stand(notes: Path) -> None:
    async with connected(notes) as server:
        told = {"path": f"{notes}/c", "text": f"see {A} and {{world:notes}}"}
        run = await ran(server, ("write_note", told), ("read_note", {"path": "{world}/c"}), READ)
        assert run.tool_calls[1].structured == {"path": "/world/notes/c", "text": f"see {A} and /world/notes"}
        assert changes(run) == [f"/world/notes/c: content is new: see {A} and /world/notes"]
        missing = await server.call("read_note", {"path": "/world/notes/none"})
        assert missing.is_error
        assert "/world/notes/none cannot be read" in missing.text


async def test_runs_share_a_server_until_they_may_change_something(notes: Path) -> None:
    async with connected(notes) as server:
        await server.tools()
        readers = await asyncio.gather(*(ran(server, PROCESS, READ) for _ in range(4)))
        [shared] = {run.tool_calls[0].structured["pid"] for run in readers}
        assert [changes(run) for run in readers] == [[]] * 4
        assert server.world
        assert server.world.made == 2, "one for them, and one for calls outside of rollouts"
        acting = [await ran(server, PROCESS, ("remember", {"text": text}), PROCESS) for text in "xy"]
        pids = [[run.tool_calls[at].structured["pid"] for at in (0, 2)] for run in acting]
        assert pids[0][0] == pids[1][0] == shared
        assert len({shared, pids[0][1], pids[1][1]}) == 3
        assert [run.tool_calls[1].result for run in acting] == ["1", "1"], "each with a memory of its own"


async def test_with_sessions_a_run_that_only_reads_leaves_its_server_to_the_next_one(notes: Path) -> None:
    async with connected(notes, isolation="session") as server:
        await server.tools()
        first, second = await ran(server, PROCESS, READ), await ran(server, PROCESS)
        third = await ran(server, PROCESS, ("remember", {"text": "x"}))
        fourth = await ran(server, PROCESS, ("remember", {"text": "y"}))
        pids = [run.tool_calls[0].structured["pid"] for run in (first, second, third, fourth)]
        assert pids[0] == pids[1] == pids[2] != pids[3]
        assert [run.tool_calls[1].result for run in (third, fourth)] == ["1", "1"], "each with a memory of its own"
        assert changes(first) == changes(third) == []


async def test_a_server_that_ends_is_started_again_in_the_same_copy(notes: Path) -> None:
    async with connected(notes) as server:
        written = ("write_note", {"path": "/world/notes/b", "text": "kept"})
        run = await ran(server, written, ("crash", {}), ("read_note", {"path": "/world/notes/b"}))
        assert run.tool_calls[1].failure == "closed"
        assert run.tool_calls[2].structured["text"] == "kept"
        assert changes(run) == ["/world/notes/b: content is new: kept"]


async def test_a_world_is_put_back_while_its_server_runs_on(notes: Path) -> None:
    async with connected(notes) as server, rollout_of_its_own() as scope:
        assert await server.rewind(), "the first time it notes what is there"
        before = await server.call(*PROCESS)
        for _ in range(2):
            await server.call("sign_note", {"path": A})
            await server.call("write_note", {"path": "/world/notes/b", "text": "new"})
            assert [change.where for change in await server.changes() or []] == [A, "/world/notes/b"]
            assert await server.rewind()
            assert await server.changes() == []
            assert (await server.call(*READ)).structured == {"path": A, "text": "first\n"}
        assert (await server.call(*PROCESS)).structured == before.structured
    assert scope.metadata["world"]["changes"] == []


async def test_the_server_starts_in_the_copy_and_gets_its_path(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(notes)
    for words in (["."], [str(notes)], ["{world:notes}"]):
        async with connected(notes, *words) as server:
            [call, listed] = (await ran(server, PROCESS, ("list_notes", {}))).tool_calls
            assert call.structured["directory"] == "/world/notes"
            assert listed.result == "a.txt"
    async with connect(NOTES, worlds=[notes], env={"NOTES": "{world}"}) as server:
        assert (await server.call("list_notes", {})).text == "a.txt"
        assert (await server.call("read_note", {"path": "a.txt"})).structured == {"path": A, "text": "first\n"}


async def test_what_cannot_be_is_refused_before_anything_runs(notes: Path) -> None:
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (NOTES, {"worlds": notes.with_name("none")}, "cannot be copied"),
        ([*NOTES, "{world:other}"], {"worlds": notes}, "names no single place"),
        ("http://127.0.0.1:1/mcp", {"worlds": notes}, "is a URL. Instead reset"),
        (NOTES, {"worlds": notes, "cassette": Cassette(notes / "tape")}, "a cassette changes nothing"),
    ]
    for server, options, why in refused:
        with pytest.raises(ConfigError, match=why):
            async with connect(server, **options):
                pass


async def test_a_server_that_cannot_start_in_a_copy_says_where_it_was(notes: Path) -> None:
    with pytest.raises(MCPError, match=r"in a copy of the world, in /world/notes: name the other") as wrong:
        async with connect(["python", "no_such_server.py"], worlds=notes):
            pass
    assert str(notes.parent / "cache") not in str(wrong.value)
    assert list((notes.parent / "cache" / "worlds").iterdir()) == [notes.parent / "cache" / "worlds" / "lock"]


async def test_a_run_that_is_over_before_its_server_has_started_leaves_nothing(notes: Path) -> None:
    async with connected(notes) as server:
        assert server.world
        run = await rollout(calling(server, ("read_note", {"path": A})), "go", timeout=0.01)
        assert run.error is not None
        assert "world" not in run.metadata
        assert changes(await ran(server, ("write_note", {"path": "/world/notes/b", "text": ""}))) != []


async def test_copies_are_made_ahead_once_a_run_has_taken_one(notes: Path) -> None:
    async with connected(notes) as server:
        assert server.world
        assert server.world.made == 1, "for calls outside of rollouts"
        await ran(server, READ)
        while server.world.made < 2 + AHEAD:
            await asyncio.sleep(0.01)


async def test_two_servers_of_a_run_have_worlds_of_their_own_in_one_record(notes: Path) -> None:
    other = notes.with_name("other")
    other.mkdir()

    async def wrote(first: Server, second: Server) -> Trajectory:
        async def both(_: object) -> dict[str, Any]:
            await first.call("write_note", {"path": "/world/notes/b", "text": "1"})
            await second.call("write_note", {"path": "/world/other/b", "text": "2"})
            return {}

        return await rollout(RunnableLambda(both), "go")

    async with connect([*NOTES, "{world}"], worlds=notes) as first:
        async with connect([*NOTES, "{world}"], worlds=other) as second:
            run = await wrote(first, second)
        assert sorted(changes(run)) == ["/world/notes/b: content is new: 1", "/world/other/b: content is new: 2"]
        async with connect([*NOTES, "{world}"], worlds=f"notes={other}") as second:
            run = await wrote(first, second)
        assert "two servers of the rollout have a world at /world/notes" in str(run.tool_calls[1].result)


async def test_a_command_that_leads_into_an_original_starts_in_the_copy_or_is_refused(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(notes.parent))
    notes.with_name("link").symlink_to(notes)
    for word in ("~/notes", f"{notes.parent}/link", f"{notes.parent}//notes"):
        async with connected(notes, word) as server:
            run = await ran(server, ("write_note", {"path": "/world/notes/b", "text": ""}), ("list_notes", {}))
            assert run.tool_calls[1].structured == {"result": ["a.txt", "b"]}
    for word in ("~/link", f"-v{notes.parent}/link:/x"):
        with pytest.raises(ConfigError, match=r"leads into the original .*write \{world:NAME\}"):
            async with connect([*NOTES, word], worlds=notes):
                pass
