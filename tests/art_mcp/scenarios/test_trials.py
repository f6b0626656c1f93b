"""Plans share a copy and its server where that makes no difference, and only there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from art_mcp import Server, connect, read_catalog
from art_mcp.scenarios.execute import StepFailed, Trial
from art_mcp.scenarios.plan import Step
from art_mcp.scenarios.trials import Trials
from art_mcp.worlds.change import Change
from tests.support.mcp.commands import MEMORY, NOTES

pytestmark = pytest.mark.slow


@asynccontextmanager
async def connected(command: Sequence[str], world: Path) -> AsyncIterator[tuple[Server, Trials]]:
    async with connect(command, worlds=world) as server:
        yield server, Trials(server, await read_catalog(server), changing=set())


def plan(tool: str, **arguments: str) -> list[Step]:
    return [Step(tool=tool, arguments=arguments)]


def writing(names: str, text: str = "x") -> list[list[Step]]:
    return [plan("write_note", path=f"/world/notes/{name}", text=text) for name in names]


def outcome(result: Trial | StepFailed) -> list[str] | str:
    """What a plan changed, or why it failed."""
    if isinstance(result, StepFailed):
        return f"{result.kind}: {result}"
    return [str(change) for change in result.changes or []]


def copies(server: Server) -> int:
    """Copies that were used: two are always made ahead."""
    assert server.world
    return server.world.made - 2


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("first\n")
    return tmp_path / "notes"


@pytest.fixture
def items(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "items").write_text("one")
    return tmp_path / "data"


async def test_acts_of_tools_that_are_known_share_two_servers(notes: Path) -> None:
    async with connected([*NOTES, "{world}"], notes) as (server, trials):
        first = await trials.run(writing("bcd"))
        assert list(map(outcome, first)) == [[f"/world/notes/{name}: content is new: x"] for name in "bcd"]
        before = copies(server)
        again = await trials.run([*writing("efghijk"), plan("read_note", path="/world/notes/e")])
        assert copies(server) - before <= 3
        assert list(map(outcome, again[:-1])) == [[f"/world/notes/{name}: content is new: x"] for name in "efghijk"]
        assert "cannot be read" in outcome(again[-1]), "each plan begins with the same world"


async def test_a_time_in_what_is_written_is_told_from_what_sharing_changes(notes: Path) -> None:
    sign = plan("sign_note", path="/world/notes/a.txt")
    async with connected([*NOTES, "{world}"], notes) as (server, trials):
        drafted, *others = await trials.run([plan("make_draft"), *writing("b"), sign, sign])
        assert outcome(drafted) == "unstable: the two executions changed different things in the world"
        assert all(isinstance(result, Trial) for result in others)
        changes = [change for result in others if isinstance(result, Trial) for change in result.changes or []]
        assert [(change.where, change.varies) for change in changes] == [
            ("/world/notes/b", False),
            ("/world/notes/a.txt", True),
            ("/world/notes/a.txt", True),
        ]
        before = copies(server)
        assert all(isinstance(result, Trial) for result in await trials.run([*writing("defg"), sign, sign]))
        assert copies(server) - before <= 3


async def test_what_a_server_remembers_is_no_part_of_what_a_plan_changes(items: Path) -> None:
    adding = [plan("add_item", name=name) for name in ("two", "three", "four")]
    async with connected([*MEMORY, "{world}/items"], items) as (_, trials):
        results = await trials.run(adding)
        assert [result.changes for result in results if isinstance(result, Trial)] == [
            [Change(where="/world/data/items", what="content", before="one", after=f"one\n{name}")]
            for name in ("two", "three", "four")
        ]


async def test_a_call_that_works_after_others_alone_is_no_plan_of_its_own(items: Path) -> None:
    plans = [plan("add_mark", name="a"), plan("undo_mark"), plan("add_mark", name="b")]
    async with connected([*MEMORY, "{world}/items"], items) as (_, trials):
        first, undone, last = await trials.run(plans)
        assert (outcome(first), outcome(last)) == (
            ["/world/data/marks: content is new: a\n"],
            ["/world/data/marks: content is new: b\n"],
        )
        assert (
            outcome(undone)
            == "error: call 1, undo_mark: Error executing tool undo_mark: " + "there is nothing to take back"
        )


async def test_what_a_server_writes_at_its_end_is_a_change_of_each_plan(items: Path) -> None:
    plans = [plan("add_mark", name=name) for name in "abc"]
    async with connected([*MEMORY, "{world}/items", "late"], items) as (_, trials):
        for result in await trials.run(plans):
            assert isinstance(result, Trial)
            assert [(change.where, change.after) for change in result.changes or []] == [
                ("/world/data/log", "1 marks"),
                ("/world/data/marks", result.steps[0].arguments["name"] + "\n"),
            ]
