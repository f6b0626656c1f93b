"""Scenarios of servers with a world: tasks that act are kept, and know what they change."""

from __future__ import annotations

import asyncio
import json
import random
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art_langgraph import rollout
from art_langgraph.cli.main import build
from art_mcp import MCPScenario, ScenarioSet, Server, connect, demonstration, generate_scenarios, read_catalog, verify
from art_mcp.scenarios.drafting.explore import Explorer
from art_mcp.scenarios.drafting.values import Values
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.scenarios.trials import execute
from art_mcp.specialization.verify import solved
from art_mcp.worlds.change import Change
from tests.support.mcp.commands import CALCULATOR, NOTES, SHOP
from tests.support.mcp.graphs import calling
from tests.support.mcp.originals import digest
from tests.support.patience import PATIENCE
from trainer_server.wire import ConfigError

pytestmark = pytest.mark.slow

B = {"path": "/world/notes/b", "text": "hello"}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    for name in ("a.txt", "plan.md"):
        (tmp_path / "notes" / name).write_text(f"the {name}")
    return tmp_path / "notes"


async def executed(server: Server, *steps: Step) -> MCPScenario | str:
    """The scenario with these steps, executed, or why it was dropped."""
    scenario = MCPScenario.make("Do it.", Plan(reference=list(steps)))
    kept, dropped = await execute(server, [scenario], await read_catalog(server))
    return kept[0] if kept else f"{dropped[0].kind}: {dropped[0].reason}"


async def test_a_plan_that_acts_is_kept_with_what_it_changes(notes: Path) -> None:
    async with connect([*NOTES, "{world}"], worlds=notes) as server:
        wrote = await executed(server, Step(tool="write_note", arguments=B))
        assert isinstance(wrote, MCPScenario)
        assert wrote.plan.changes == [Change(where="/world/notes/b", what="content", after="hello")]
        assert (wrote.plan.facts, wrote.plan.asks) == ([], False)
        assert demonstration(wrote)[-1]["content"] == "It is done."
        both = await executed(
            server,
            Step(tool="write_note", arguments=B),
            Step(tool="read_note", arguments={"path": "/world/notes/a.txt"}),
        )
        assert isinstance(both, MCPScenario)
        assert [step.reads for step in both.plan.reference] == [False, True]
        assert both.plan.facts == ["the a.txt"]

        good = await rollout(calling(server, ("write_note", B)), wrote, verify())
        assert solved(good)
        assert good.reward == pytest.approx(1.0)
        wrong = await rollout(calling(server, ("write_note", {**B, "text": "hallo"})), wrote, verify())
        assert not solved(wrong)
        assert wrong.metadata["world"]["differences"] == ["/world/notes/b: content should now be hello, but is hallo"]


async def test_a_time_in_what_is_written_varies_and_a_name_that_does_is_dropped(notes: Path) -> None:
    async with connect([*NOTES, "{world}"], worlds=notes) as server:
        sign = Step(tool="sign_note", arguments={"path": "/world/notes/a.txt"})
        signed = await executed(server, sign)
        assert isinstance(signed, MCPScenario)
        [change] = signed.plan.changes or []
        assert (change.where, change.varies) == ("/world/notes/a.txt", True)
        assert solved(await rollout(calling(server, (sign.tool, sign.arguments)), signed, verify()))
        assert await executed(server, Step(tool="make_draft")) == (
            "unstable: the two executions changed different things in the world"
        )


async def test_a_tool_that_acts_where_no_world_shows_it_is_checked_by_its_calls(notes: Path) -> None:
    async with connect([*NOTES, "{world}"], worlds=notes) as server:
        remembered = await executed(server, Step(tool="remember", arguments={"text": "x"}))
        assert isinstance(remembered, MCPScenario)
        assert remembered.plan.changes == []
        assert not remembered.plan.asks


async def test_scenarios_are_generated_with_paths_of_the_world_and_the_original_stays(notes: Path) -> None:
    for name in ("tea.txt", "list.md", "old.txt", "trip.md"):
        (notes / name).write_text(f"about {name}")
    before = digest(notes)
    async with connect([*NOTES, "{world}"], worlds=notes) as server:
        found = await generate_scenarios(server, 24, progress=False)
        acting = [one for one in found.scenarios if one.plan.changes]
        for one in [*acting[:4], *found.held_out[:6]]:
            if not one.plan.readings:
                calls = [call["function"] for message in demonstration(one) for call in message.get("tool_calls", ())]
                made = [(call["name"], json.loads(call["arguments"])) for call in calls]
                run = await rollout(calling(server, *made, answer=demonstration(one)[-1]["content"]), one, verify())
                assert run.reward == pytest.approx(1.0), (one.task, run.metrics)
    assert digest(notes) == before
    assert {"write_note", "sign_note"} <= {tool for one in acting for tool in one.tools}
    assert {"read_note", "list_notes"} <= {tool for one in found.train for tool in one.tools}
    assert all(one.plan.changes is not None for one in found.scenarios if one.plan.reply == "result")
    assert any("/world/notes" in one.task for one in found.scenarios)
    assert str(notes) not in "".join(one.model_dump_json() for one in found.scenarios)
    assert not any(note.startswith("not called") for note in found.notes)
    assert any("a copy of /world/notes (directory " in note for note in found.notes)
    assert f"{len(acting)} the state of the world" in found.report()


async def test_placeholders_and_originals_in_scenarios_of_people_become_aliases(notes: Path, tmp_path: Path) -> None:
    step = Step(tool="read_note", arguments={"path": "{world:notes}/a.txt"})
    written = MCPScenario.make(f"Read {{world}}/a.txt, and {notes}/b.", Plan(reference=[step]))
    ScenarioSet([written]).save(tmp_path / "own.jsonl")
    async with connect([*NOTES, "{world}"], worlds=notes) as server:
        assert server.world
        [one] = ScenarioSet.load(tmp_path / "own.jsonl").with_aliases(server.world.aliases).scenarios
    assert one.task == "Read /world/notes/a.txt, and /world/notes/b."
    assert one.plan.reference[0].arguments == {"path": "/world/notes/a.txt"}
    assert one.id != written.id


def test_the_command_takes_worlds(notes: Path, tmp_path: Path) -> None:
    command = shlex.join([*NOTES, "{world:papers}"])
    words = ["scenarios", command, "--world", f"papers={notes}", "-n", "4", "-o", str(tmp_path / "found.jsonl")]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0, result.output
    assert "each execution had a copy of /world/papers (directory " in result.output
    assert "/world/papers" in (tmp_path / "found.jsonl").read_text()
    refused = CliRunner().invoke(build(), ["scenarios", "http://127.0.0.1:1/mcp", "--world", str(notes)])
    assert isinstance(refused.exception, ConfigError) or "is a URL" in refused.output


async def test_with_a_reset_all_tools_are_called() -> None:
    resets = []
    async with connect(SHOP, reset=lambda: resets.append(1)) as server:
        catalog = await read_catalog(server)
        note = Step(tool="add_note", arguments={"text": "x"})
        kept, dropped = await execute(server, [MCPScenario.make("Note it.", Plan(reference=[note]))], catalog)
        assert dropped == []
        assert kept[0].plan.changes is None
        assert len(resets) == 2, "the second execution did not find the note of the first one"
        with pytest.raises(ConfigError, match="give them to `connect`"):
            await generate_scenarios(server, worlds="x")


async def test_a_world_that_cannot_be_read_costs_one_scenario(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> None:
        raise OSError("the disk is gone")

    async with connect([*NOTES, "{world}"], worlds=notes) as server:
        monkeypatch.setattr(server, "changes", broken)
        outcome = await executed(server, Step(tool="write_note", arguments=B))
    assert outcome == "error: what it changed in its world cannot be read: the disk is gone"


async def test_a_server_that_computes_has_an_empty_world(tmp_path: Path) -> None:
    async with connect(CALCULATOR) as server:
        alone = await generate_scenarios(server, 20, seconds=20, progress=False)
    assert {name for name, count in alone.coverage.items() if count} == {"shade_list"}
    remedies = {cover.tool: cover.remedy for cover in alone.tool_coverage}
    assert "an empty directory if it only computes" in remedies["mean"]
    (tmp_path / "nothing").mkdir()
    async with connect(CALCULATOR, worlds=tmp_path / "nothing") as server:
        found = await generate_scenarios(server, 60, seconds=40, progress=False)
    assert {cover.status for cover in found.tool_coverage} == {"covered"}
    asked = [one.plan for one in found.scenarios if one.plan.kind == "single"]
    assert asked
    assert all(plan.facts and not plan.changes for plan in asked)


async def test_tools_that_need_nothing_are_explored_first(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    async with connect(CALCULATOR, worlds=tmp_path / "nothing") as server:
        catalog = await read_catalog(server)
        values = Values(catalog, {}, random.Random(0))
        until = asyncio.get_running_loop().time() + PATIENCE
        await Explorer(server, catalog.tools, values, seed=0, until=until).explore(progress=False)
    assert catalog.tools[-1].name == next(iter(values.graph.results)) == "shade_list"
    assert {arguments["shade"] for arguments, _ in values.graph.results["hue"]} <= {"crimson", "teal", "ochre"}


async def test_tools_that_are_allowed_are_explored() -> None:
    """No schema says which shades there are, and no other tool: an error does, of a tool that may change something."""
    async with connect(CALCULATOR) as server:
        found = await generate_scenarios(server, 60, seconds=40, progress=False, allow_destructive=True)
    assert {cover.status for cover in found.tool_coverage} == {"covered"}
