"""Runs that stop and go on: at interrupts, at breakpoints, and in another rollout."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from art_langgraph import Scenario, Trajectory, TrajectoryStore, compare_versions, evaluate, gather, rollout, train
from tests.support.runs.chat_models import Answering
from trainer_server.wire import ConfigError


class State(TypedDict):
    question: str
    said: Annotated[list[str], operator.add]


def approved(**options: Any) -> Any:
    """A graph that drafts, lets a person approve, and sends."""
    model = Answering()

    async def draft(state: State) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke(f"draft {state['question']}")).text]}

    async def ask(state: State) -> dict[str, list[str]]:
        return {"said": [str(interrupt("send?"))]}

    async def send(state: State) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke(f"send {state['question']}")).text]}

    graph = StateGraph(State).add_node("draft", draft).add_node("ask", ask).add_node("send", send)
    graph.add_edge(START, "draft").add_edge("draft", "ask").add_edge("ask", "send")
    return graph.compile(checkpointer=InMemorySaver(), **options)


def on(thread: str, **more: str) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


@pytest.mark.parametrize("stops", [{"interrupt_before": ["send"]}, {"interrupt_after": ["draft", "ask"]}])
async def test_a_run_goes_on_from_breakpoints_and_answers_interrupts(stops: dict[str, Any]) -> None:
    asked: list[list[Any]] = []

    def resume(values: list[Any]) -> str:
        asked.append(values)
        return "yes"

    found = await rollout(approved(**stops), {"question": "one", "said": []}, resume=resume)
    assert found.error is None
    assert asked == [["send?"]], "a breakpoint asks nothing"
    assert found.output["said"] == ["fine", "yes", "fine"]
    assert [call.node for call in found.completions] == ["draft", "send"]
    ended = await rollout(approved(**stops), {"question": "one", "said": []})
    assert "send" not in [node.node for node in ended.nodes], "without `resume` the run ends where it stops"


async def test_a_run_that_began_at_a_checkpoint_goes_on_from_where_it_stopped() -> None:
    graph = approved()
    await rollout(graph, {"question": "one", "said": []}, config=on("t"), resume=lambda _: "no")
    history = [state async for state in graph.aget_state_history(on("t"))]
    before = next(state for state in history if state.next == ("draft",))
    found = await rollout(graph, None, config=before.config, resume=lambda _: "yes")
    assert found.error is None
    assert found.output["said"] == ["fine", "yes", "fine"]


@pytest.mark.parametrize("stored", [True, False])
async def test_a_resumed_rollout_has_the_scenario_of_its_thread(stored: bool, tmp_path: Path) -> None:
    graph, store = approved(), TrajectoryStore(tmp_path / "s.sqlite") if stored else None

    def reward(run: Trajectory) -> float:
        return float(run.scenario.metadata.get("answer") == run.scenario.input["question"])

    for thread in ("one", "two"):
        given = Scenario(input={"question": thread, "said": []}, metadata={"answer": thread})
        begun = await rollout(graph, given, config=on(thread), store=store)
        ended = await rollout(graph, Command(resume="yes"), reward, config=on(thread), store=store)
        assert ended.error is None
        assert (ended.scenario.id, ended.scenario.input) == (begun.scenario.id, begun.scenario.input)
        assert ended.reward == float(stored), "the store has the metadata of the task too"
    own = await rollout(graph, Scenario(id="mine", input=None), config=on("two"))
    assert own.scenario.id == "mine"


async def test_a_thread_that_nothing_knows_is_a_scenario_of_its_own() -> None:
    found = await rollout(approved(), Command(resume="yes"), config=on("unknown"))
    assert found.error is not None
    assert found.scenario.id == "thread-unknown"


async def test_several_runs_never_share_a_thread() -> None:
    graph, given, client = approved(), {"question": "one", "said": []}, cast(Any, None)
    shared = "config names the thread 't', which 2 runs would share.*leave thread_id out"
    with pytest.raises(ConfigError, match=shared):
        await gather(graph, [given], 2, config=on("t"), progress=False)
    with pytest.raises(ConfigError, match=shared):
        await evaluate(graph, [given, {**given, "question": "two"}], config=on("t"), progress=False)
    with pytest.raises(ConfigError, match=shared):
        await compare_versions(
            graph, [given], lambda group: group, policy="p", versions=(0, 1), config=on("t"), progress=False
        )
    with pytest.raises(ConfigError, match=r"run_config names the thread 't', which 24 runs"):
        async for _ in train(
            graph, [given], policy="p", reward=lambda _: 1.0, steps=3, client=client, groups_per_step=1,
            run_config=on("t"),
        ):  # fmt: skip
            pass
    (group,) = await gather(graph, [given], 1, config=on("t"), progress=False)
    assert group.trajectories[0].thread_id == "t", "a single run shares it with no other"
