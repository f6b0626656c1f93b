"""The requests of people: their files, and whether the calls that are to solve them do so on the servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from art_langgraph import Evaluation, Trajectory, rollout
from art_mcp import MCPScenario, Measurement, Server, connect, demonstration, verify
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.specialization.verify import solved
from benchmarks.specialize import connected
from benchmarks.wordings import requests
from benchmarks.wordings.requests import (
    FOLDER,
    SEED,
    SERVERS_OF_REQUESTS,
    WRITERS,
    foreign_file,
    foreign_rates,
    foreign_scenarios,
    read_requests,
)
from testbed import library
from tests.support.mcp.graphs import calling
from trainer_server.wire import ConfigError

NAMES = sorted(
    path.name.removesuffix(".jsonl") for path in FOLDER.glob("*.jsonl") if not path.name.endswith(".model.jsonl")
)
COMMAND = SERVERS_OF_REQUESTS["library"].command()


async def failures(server: Server, scenarios: Sequence[MCPScenario]) -> list[str]:
    """The tasks that their own calls and answer do not solve. Values that another run gives otherwise are left out."""
    wrong = []
    for one in scenarios:
        shown = demonstration(one)
        calls = [call["function"] for message in shown for call in message.get("tool_calls", ())]
        made = [(call["name"], json.loads(call["arguments"])) for call in calls]
        run = await rollout(calling(server, *made, answer=shown[-1]["content"]), one, verify())
        if not (solved(run) or one.plan.readings):
            wrong.append(one.task)
    return wrong


@pytest.mark.parametrize("name", NAMES)
def test_each_server_has_fifteen_requests_that_differ(name: str) -> None:
    people = read_requests(name)["people"]
    assert len({request.task.casefold() for request in people}) == len(people) >= 15
    tools = {call.tool for request in people for call in request.calls}
    assert len(tools) >= 2
    assert sum(request.reply == "refusal" for request in people) >= 1
    assert all(request.calls for request in people)


@pytest.mark.slow
async def test_requests_to_the_library_are_solved_by_their_calls(tmp_path: Path) -> None:
    async with connect(COMMAND, worlds=library.make_library(tmp_path / "library.db", SEED)) as server:
        scenarios, dropped = await foreign_scenarios(server, "library")
        assert dropped == []
        assert {one.plan.split for one in scenarios} == {"foreign"}
        assert {one.plan.kind for one in scenarios} >= {"single", "pair", "chain", "impossible"}
        assert await failures(server, scenarios) == []


@pytest.mark.slow
async def test_a_request_that_does_not_work_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FOLDER", tmp_path)
    lines = [
        {"task": "wheres Dune", "calls": [{"tool": "book_by_title", "arguments": {"title": "Dune"}}], "facts": ["Z1"]},
        {"task": "and Emma?", "calls": [{"tool": "book_by_title", "arguments": {"title": "Emma"}}], "facts": ["A1"]},
    ]
    (tmp_path / "library.model.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    async with connect(COMMAND, worlds=library.make_library(tmp_path / "library.db", SEED)) as server:
        scenarios, dropped = await foreign_scenarios(server, "library")
        assert scenarios == []
        assert {record.task: record.reason for record in dropped} == {
            "wheres Dune": "no result has 'Z1'",
            "and Emma?": "call 1, book_by_title: Error executing tool book_by_title: there is no book 'Emma'",
        }
        with pytest.raises(ConfigError, match="2 requests to library do not work"):
            await foreign_file(server, "library", tmp_path)
        assert await foreign_file(server, "nowhere", tmp_path) is None


def test_success_is_told_by_who_wrote_the_requests() -> None:
    def run(at: int, writer: str, success: bool) -> Trajectory:
        plan = Plan(reference=[Step(tool="look")], split="foreign", origin=writer)
        scenario = MCPScenario.make(f"{writer} {at}", plan)
        return Trajectory(scenario=scenario, reward=float(success), metrics={"success": 0.2 * success})

    runs = [run(0, "people", True), run(1, "people", False)]
    assert foreign_rates(Measurement("after", Evaluation(runs, 1, solved))) == {"people": 0.5}
    runs.append(run(0, "model", True))
    assert foreign_rates(Measurement("after", Evaluation(runs, 1, solved))) == {"people": 0.5, "model": 1.0}
    assert list(WRITERS) == ["people", "model"]
    assert foreign_rates(Measurement("after", Evaluation([], 1, solved))) == {}


@pytest.mark.servers
@pytest.mark.parametrize("name", [name for name in NAMES if name in SERVERS_OF_REQUESTS and name != "library"])
async def test_requests_are_solved_by_their_calls(name: str, tmp_path: Path) -> None:
    async with connected(SERVERS_OF_REQUESTS[name], tmp_path, SEED) as server:
        scenarios, dropped = await foreign_scenarios(server, name)
        assert dropped == []
        assert await failures(server, scenarios) == []
