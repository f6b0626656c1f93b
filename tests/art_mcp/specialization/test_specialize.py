"""`specialize` from end to end: a real MCP server, the real trainer on the tiny model, the small engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ARTError, ChatART, GRPOConfig, SFTConfig, TrainerClient
from art_mcp import (
    GenerationSettings,
    MCPScenario,
    RunSettings,
    ScenarioSet,
    TrainingSettings,
    WarmStart,
    connect,
    specialize,
)
from art_mcp.scenarios.plan import Observation, Plan, Split, Step
from art_mcp.specialization.demonstrations import demonstrations
from art_mcp.worlds.change import Change
from tests.support.mcp.commands import NOTES, SERVER, SHOP
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError

pytestmark = pytest.mark.slow

SPLITS: tuple[Split, ...] = ("train", "values")
ALLOWED = GenerationSettings(allow_destructive=True)
"""`add` has no annotations."""


def adding(a: int, b: int, split: Split, *, asks: str = "add") -> MCPScenario:
    """A task that the small engine solves at once, or for another tool never."""
    plan = Plan(
        server="tested",
        reference=[Step(tool="add", arguments={"a": a, "b": b})],
        split=split,
        facts=[str(a + b)],
        observations=[Observation(text=str(a + b), structured={"result": a + b})],
    )
    return MCPScenario.make(f'call {asks} {{"a": {a}, "b": {b}}}', plan)


def scenarios() -> ScenarioSet:
    found = [adding(n, 2 * n, "train") for n in range(1, 5)]
    held = [adding(1, 9, "values"), adding(2, 9, "phrasings", asks="substract")]
    return ScenarioSet([*found, *held], offered=["add"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"warm_start": "missing.jsonl"}, "missing.jsonl cannot be read"),
        (
            {"scenarios": 12},
            r"scenarios=12 are too few for steps of 12: take more scenarios \(scenarios=, --scenarios\)",
        ),
        ({"policy": "no name"}, "name: "),
    ],
)
async def test_what_is_wrong_is_said_before_the_work_begins(
    connected: TrainerServer, tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ARTError, match=why):
        await specialize(SERVER, **{"policy": "special", "output": tmp_path / "out", **options}, progress=False)
    assert not (tmp_path / "out").exists()


async def test_a_server_in_and_a_version_with_a_report_out(connected: TrainerServer, tmp_path: Path) -> None:
    told: list[str] = []
    options: dict[str, Any] = {
        "policy": "special",
        "minutes": None,
        "scenarios": scenarios(),
        "generation": ALLOWED,
        "warm_start": WarmStart(config=SFTConfig(num_train_epochs=1)),
        "training": TrainingSettings(steps=1, groups_per_step=2, n=2, config=GRPOConfig(lr=1e-3), difficulty_runs=2),
        "runs": RunSettings(max_tokens=60),
        "output": tmp_path / "out",
        "progress": False,
        "on_stage": told.append,
    }
    made = await specialize(SERVER, **options)
    assert made.server == "tested"
    assert made.model == "special@1"
    assert made.before is not None
    assert made.after is not None
    assert (made.before.version, made.before.rates()) == (
        0, {"values": 1.0, "phrasings": 0.0, "combinations": None, "headline": 0.5},
    )  # fmt: skip
    assert list(made.measurements) == ["before", "prompted", "after_sft", "after"]
    assert made.after.headline == 0.5
    assert made.warm_start is not None
    assert made.warm_start["rows"] == 8  # each scenario twice, with other values
    stages = ["scenarios", "before", "prompted", "warm start", "after_sft", "difficulty", "rl", "after"]
    assert list(made.seconds) == stages
    assert made.tokens["before"].sampled > 0
    assert made.runs["before"] == len(made.before.evaluation.trajectories)
    assert set(made.runs) == {"before", "prompted", "after_sft", "difficulty", "rl", "after"}
    assert made.summary()["cost"]["runs"] == sum(made.runs.values()) > made.runs["before"] > 0
    assert made.notes == []
    assert any("0 of 4 are solved sometimes" in line for line in told)
    assert [one.why for one in made.dead_groups.scenarios] == ["solved"] * 4
    for name in ("report.md", "report.html"):
        text = (tmp_path / "out" / name).read_text()
        assert "special@1" in text
        assert "1 of 1" in text
        assert "called a tool that does not exist" in text
        assert "4 of 4 groups taught nothing" in text
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").exists()
    kept = ScenarioSet.load(tmp_path / "out" / "scenarios.jsonl")
    assert [one.plan.measured for one in kept.train] == [1.0] * 4

    with pytest.raises(ConfigError, match=r"is not empty.*continue it by --resume"):
        await specialize(SERVER, **options)
    with pytest.raises(ConfigError, match=r"runs.max_tokens was 60, is 61; seed was 0, is 1"):
        await specialize(SERVER, **{**options, "runs": RunSettings(max_tokens=61), "seed": 1}, resume=True)
    again = await specialize(SERVER, **options, resume=True)
    assert {name: one.rates() for name, one in again.measurements.items()} == {
        name: one.rates() for name, one in made.measurements.items()
    }
    async with TrainerClient() as trainer:
        assert [one.version for one in await trainer.versions("special")] == [0, 1], "nothing was done again"


async def test_a_time_for_everything_is_kept(connected: TrainerServer, tmp_path: Path) -> None:
    """The small engine learns nothing, so the training ends by its own rule, before the time does."""
    made = await specialize(
        SERVER,
        policy="timed",
        minutes=3,
        scenarios=scenarios(),
        generation=ALLOWED,
        warm_start=None,
        training=TrainingSettings(groups_per_step=2, n=2),
        runs=RunSettings(max_tokens=60),
        output=tmp_path / "out",
        progress=False,
    )
    assert len(made.steps) == 3
    assert "3 steps in a row had nothing to learn from" in made.steps[-1]["stopped"]
    assert made.selection == "version 0 is the last one"
    assert sum(made.seconds.values()) < 180
    events = [json.loads(line) for line in (tmp_path / "out" / "progress.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in events if line["event"] == "end"] == ["scenarios", "before", "prompted", "rl",
                                                                           "after"]  # fmt: skip
    assert all(line["left"] < 180 for line in events if line["event"] == "end")


def breaking(after: int, policy: str = "breaking") -> Any:
    """An agent that answers, and then raises: always for 0, else from so many runs on."""
    ran = 0

    def make(tools: list[BaseTool]) -> Any:
        async def node(state: MessagesState) -> Any:
            nonlocal ran
            ran += 1
            if after and ran > after:
                raise OSError("the network is down")
            await ChatART(policy=policy, max_tokens=8).ainvoke(state["messages"])
            if not after:
                raise ValueError("that is no JSON")
            return {}

        return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()

    return make


async def test_an_agent_that_raises_on_every_answer_is_measured(connected: TrainerServer) -> None:
    untrained = TrainingSettings(steps=0, groups_per_step=2)
    made = await specialize(
        SERVER,
        policy="breaking",
        minutes=None,
        graph=breaking(0),
        scenarios=scenarios(),
        generation=ALLOWED,
        training=untrained,
        progress=False,
    )
    found = [one.evaluation for one in made.measurements.values()]
    assert [(one.success_rate, one.failed) for one in found] == [(0.0, 2), (0.0, 2)]


async def test_a_measurement_that_fails_is_a_note_in_the_report(connected: TrainerServer, tmp_path: Path) -> None:
    made = await specialize(
        SERVER,
        policy="breaking-later",
        minutes=None,
        graph=breaking(2, "breaking-later"),
        scenarios=scenarios(),
        generation=ALLOWED,
        warm_start=WarmStart(config=SFTConfig(num_train_epochs=1)),
        training=TrainingSettings(steps=0, groups_per_step=2),
        output=tmp_path / "out",
        progress=False,
    )
    (note,) = made.notes
    assert note == "version 1 could not be measured (after_sft): 2 of 2 runs raised: OSError: the network is down"
    assert note in (tmp_path / "out" / "report.md").read_text()


async def test_a_training_whose_runs_all_fail_ends_and_the_rest_is_done(connected: TrainerServer) -> None:
    made = await specialize(
        SERVER,
        policy="breaking-in-training",
        minutes=None,
        graph=breaking(2, "breaking-in-training"),
        scenarios=scenarios(),
        generation=ALLOWED,
        training=TrainingSettings(steps=1, groups_per_step=2, n=2),
        progress=False,
    )
    (note,) = made.notes
    assert note.startswith("the training ended: ")
    assert note.endswith("OSError: the network is down")
    assert made.steps == []
    assert made.after is not None
    assert made.after.version == made.version == 0


async def test_the_report_escapes_what_a_server_says(connected: TrainerServer, tmp_path: Path) -> None:
    odd = [adding(n, n, "train") for n in range(2)]
    odd.append(MCPScenario.make("say <script>alert(1)</script>", adding(5, 5, "values").plan))
    await specialize(
        SERVER,
        policy="escaped",
        minutes=None,
        warm_start=None,
        scenarios=ScenarioSet(odd),
        generation=ALLOWED,
        training=TrainingSettings(steps=0, groups_per_step=2),
        runs=RunSettings(max_tokens=60),
        output=tmp_path,
        progress=False,
    )
    assert "<script>" not in (tmp_path / "report.html").read_text()


async def test_runs_have_worlds_and_are_judged_by_what_they_change(connected: TrainerServer, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    made_by = [Change(where="/world/notes/b", what="content", after="hi")]
    asked = []
    for n, split in enumerate(SPLITS):
        arguments = {"path": "{world}/b", "text": "hi" if n else "ho"}
        step = Step(tool="write_note", arguments=arguments)
        task = f"call write_note {json.dumps({**arguments, 'text': 'hi'})}"
        asked.append(MCPScenario.make(task, Plan(server="notes", reference=[step], split=split, changes=made_by)))
    told: list[str] = []
    made = await specialize(
        [*NOTES, "{world}"],
        policy="worlds",
        minutes=None,
        warm_start=None,
        worlds=tmp_path / "notes",
        scenarios=ScenarioSet(asked),
        training=TrainingSettings(steps=0, groups_per_step=1),
        runs=RunSettings(max_tokens=100),
        progress=False,
        on_stage=told.append,
    )
    assert made.before is not None
    (run,) = made.before.evaluation.trajectories
    assert [call.arguments for call in run.tool_calls] == [{"path": "/world/notes/b", "text": "hi"}]
    assert run.metadata["world"]["differences"] == []
    assert run.reward == pytest.approx(1.0)
    assert [one.headline for one in made.measurements.values()] == [1.0] * 2
    assert any(line.startswith("each run gets a copy of /world/notes (directory ") for line in told)
    assert list((tmp_path / "notes").iterdir()) == []


async def test_too_few_scenarios_are_an_error_that_says_what_to_do(connected: TrainerServer) -> None:
    with pytest.raises(ConfigError, match="take more scenarios"):
        await specialize(SERVER, policy="few", scenarios=ScenarioSet([adding(1, 1, "train")]), progress=False)


async def test_the_agent_gets_no_tool_that_may_change_something(connected: TrainerServer) -> None:
    """A policy that is trained tries out whatever it is given."""
    plan = Plan(server="shop", reference=[Step(tool="list_items")])
    asked = [MCPScenario.make(f"say {n}", plan.model_copy(update={"split": split})) for n, split in enumerate(SPLITS)]
    given: list[str] = []

    def make(tools: list[BaseTool]) -> Any:
        given.extend(tool.name for tool in tools)
        return breaking(9)(tools)

    made = await specialize(
        SHOP,
        policy="breaking",
        graph=make,
        scenarios=ScenarioSet(asked),
        training=TrainingSettings(steps=0, groups_per_step=1),
        progress=False,
    )
    assert {"list_items", "get_price"} <= set(given)
    assert not {"remove_item", "add_note"} & set(given)
    assert [note for note in made.notes if "remove_item (it has no annotations" in note] == made.notes != []


async def test_scenarios_with_a_tool_that_may_change_something_need_the_permission(connected: TrainerServer) -> None:
    with pytest.raises(ConfigError, match=r"need tools that are not called, .* add \(it has no .*--allow-dest"):
        await specialize(
            SERVER,
            policy="few",
            scenarios=scenarios(),
            training=TrainingSettings(groups_per_step=2),
            progress=False,
        )


async def test_demonstrations_are_what_the_agent_would_send(connected: TrainerServer) -> None:
    async with connect(SERVER) as server:
        (one,) = demonstrations([adding(1, 2, "train")], await server.tools())
    assert [message["role"] for message in one.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert one.messages[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    assert one.messages[3]["content"] == "3"
    assert one.messages[4]["content"] == "It is 3."
    assert one.tools is not None
    assert "add" in [tool["function"]["name"] for tool in one.tools]
