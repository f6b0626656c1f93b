"""Middleware of `create_agent`: what each records, where, and which completions count."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
    wrap_model_call,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, Field

from art_langgraph import NodeRewards, Trajectory, TrajectoryGroup, rollout
from art_langgraph.credit import group_refs
from tests.support.runs.chat_models import MakeModel
from tests.support.servers.trainer_server import TrainerServer


@tool
def double(value: int) -> str:
    """Double a number."""
    return str(2 * value)


@tool
def triple(value: int) -> str:
    """Triple a number."""
    return str(3 * value)


def paths(run: Trajectory) -> list[str]:
    assert run.error is None, run.error
    return ["/".join(call.path) for call in run.completions]


def trained(run: Trajectory, *nodes: str) -> list[str]:
    """Texts of the completions that a step would train."""
    group = TrajectoryGroup(scenario=run.scenario, trajectories=[run.model_copy(update={"reward": 1.0})])
    ids = [
        one for ref in group_refs([group], nodes=nodes or None) for part in ref.trajectories for one in part.completions
    ]
    by_id = {call.id: str((call.message or {}).get("content")) for call in run.completions}
    return [by_id[one] for one in ids]


async def test_a_summary_is_a_completion_of_the_middlewares_own_node(make: MakeModel, connected: TrainerServer) -> None:
    summarize = SummarizationMiddleware(make(), trigger=("messages", 3), keep=("messages", 1))
    agent = create_agent(make(), [double], middleware=[summarize])
    connected.engine["answers"][:] = ['call double {"value": 4}', "the summary", "the end"]

    def reward(run: Trajectory) -> NodeRewards:
        return NodeRewards({"SummarizationMiddleware.before_model": 0.25, "model": 1.0})

    run = await rollout(agent, "go", reward)
    assert paths(run) == ["model", "SummarizationMiddleware.before_model", "model"]
    assert trained(run, "SummarizationMiddleware.before_model") == ["the summary"]
    assert len(trained(run, "model")) == 2
    assert "the summary" in str(run.completions[2].messages)
    group = TrajectoryGroup(scenario=run.scenario, trajectories=[run])
    rewards = {
        ref.scenario_id.partition("/")[2]: (len(ref.trajectories[0].completions), ref.trajectories[0].reward)
        for ref in group_refs([group])
    }
    assert rewards == {"SummarizationMiddleware.before_model": (1, 0.25), "model": (2, 1.0)}


async def test_a_tool_selection_has_a_node_of_its_own(make: MakeModel, connected: TrainerServer) -> None:
    agent = create_agent(make(), [double, triple], middleware=[LLMToolSelectorMiddleware(max_tools=1)], name="boss")
    connected.engine["answers"][:] = ['{"tools": ["triple"]}', 'call triple {"value": 3}', '{"tools": ["triple"]}', "9"]
    run = await rollout(agent, "go")
    assert paths(run) == ["boss/model/tool_selection", "boss/model"] * 2
    assert [call.node for call in run.completions] == ["tool_selection", "model"] * 2
    assert trained(run, "tool_selection") == ['{"tools": ["triple"]}'] * 2
    assert len(trained(run, "model")) == 2
    assert len(trained(run, "boss")) == len(trained(run)) == 4


async def test_an_emulated_tool_is_a_completion_inside_of_the_tools_node(
    make: MakeModel, connected: TrainerServer
) -> None:
    agent = create_agent(make(), [double], middleware=[LLMToolEmulator(model=make())])
    connected.engine["answers"][:] = ['call double {"value": 3}', "about six", "6"]
    run = await rollout(agent, "go")
    assert paths(run) == ["model", "tools/tool_emulation", "model"]


async def test_of_a_fallback_only_what_was_answered_counts(make: MakeModel) -> None:
    agent = create_agent(make("no-such-policy", max_retries=0), [], middleware=[ModelFallbackMiddleware(make())])
    run = await rollout(agent, "say answered")
    assert paths(run) == ["model", "model"]
    assert [(call.error is None, call.trainable) for call in run.completions] == [(False, False), (True, True)]
    assert trained(run) == ["answered"]


class Number(BaseModel):
    """A number."""

    value: int = Field(le=9)


async def test_of_a_retried_model_call_the_answer_that_was_used_counts(
    make: MakeModel, connected: TrainerServer
) -> None:
    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0.01, retry_on=(Exception,))
    agent = create_agent(
        make(), [], middleware=[retry], response_format=ToolStrategy(Number, handle_errors=False)
    )  # fmt: skip
    connected.engine["answers"][:] = ['call Number {"value": 10}', 'call Number {"value": 7}']
    run = await rollout(agent, "go")
    assert paths(run) == ["model", "model"]
    assert run.output["structured_response"] == Number(value=7)
    assert [call.superseded for call in run.completions] == ["retry", None]
    assert run.completion_ids == [run.completions[1].id]


async def test_an_answer_that_cannot_be_parsed_does_not_count_when_the_fallback_answers(
    make: MakeModel, connected: TrainerServer
) -> None:
    model = make(model_kwargs={"response_format": Number})
    agent = create_agent(model, [], middleware=[ModelFallbackMiddleware(make("base"))])
    connected.engine["answers"][:] = ['{"value": 10}', "seven"]
    run = await rollout(agent, "go")
    assert trained(run) == ["seven"]
    assert [(call.error, call.superseded) for call in run.completions] == [(None, "retry"), (None, None)]


async def test_a_draft_of_another_model_counts_and_one_of_the_same_does_not(make: MakeModel) -> None:
    other = make("base")

    @wrap_model_call
    async def escalates(request: Any, handler: Any) -> Any:
        await handler(request)
        return await handler(request.override(model=other))

    @wrap_model_call
    async def best_of_two(request: Any, handler: Any) -> Any:
        await handler(request)
        return await handler(request)

    run = await rollout(create_agent(make(), [], middleware=[escalates]), "say draft")
    assert [(call.model, call.superseded) for call in run.completions] == [("agent", None), ("base", None)]
    run = await rollout(create_agent(make(), [], middleware=[best_of_two]), "say twice")
    assert [call.superseded for call in run.completions] == ["retry", None]


async def test_what_a_retried_tool_did_before_is_superseded(make: MakeModel) -> None:
    researcher, tries = create_agent(make(), [], name="researcher"), iter(range(9))

    @tool
    async def research(question: str) -> str:
        """Ask the researcher."""
        found = await researcher.ainvoke({"messages": [("user", question)]})
        if next(tries) == 0:
            raise ConnectionError("once")
        return str(found["messages"][-1].text)

    retry = ToolRetryMiddleware(max_retries=1, initial_delay=0.01)
    run = await rollout(create_agent(make(), [research], middleware=[retry]), 'call research {"question": "say found"}')
    assert paths(run) == ["model", "tools/researcher/model", "tools/researcher/model", "model"]
    assert [call.superseded for call in run.completions] == [None, "retry", None, None]
    assert [(one.tool, one.is_error) for one in run.tool_calls] == [("research", True), ("research", False)]


@pytest.mark.parametrize("decision", ["approve", "reject", "edit"])
async def test_a_person_in_the_loop(make: MakeModel, decision: str) -> None:
    agent = create_agent(
        make(), [double], middleware=[HumanInTheLoopMiddleware({"double": True})], checkpointer=InMemorySaver()
    )
    decided: dict[str, Any] = {"type": decision}
    if decision == "edit":
        decided["edited_action"] = {"name": "double", "args": {"value": 5}}
    seen: list[Any] = []

    def resume(values: list[Any]) -> Any:
        seen.extend(values)
        return {"decisions": [decided]}

    run = await rollout(agent, 'call double {"value": 4}', resume=resume)
    assert paths(run)[0] == "model"
    assert len(seen) == 1
    assert all(call.trainable for call in run.completions), "the interrupt comes after the model's node"
    (called,) = run.tool_calls
    results = {"approve": ({"value": 4}, "8", False), "edit": ({"value": 5}, "10", False)}
    if decision == "reject":
        assert (called.tool, called.arguments, called.is_error) == ("double", {"value": 4}, True)
    else:
        assert (called.arguments, called.result, called.is_error) == results[decision]
    interrupted = [node.node for node in run.nodes if node.interrupted]
    assert interrupted == ["HumanInTheLoopMiddleware.after_model"]


async def test_calls_above_a_limit_are_tool_calls_that_were_refused(make: MakeModel) -> None:
    limit = ToolCallLimitMiddleware(run_limit=1)
    run = await rollout(
        create_agent(make(), [double], middleware=[limit]), 'calls [["double", {"value": 1}], ["double", {"value": 2}]]'
    )
    assert set(paths(run)) == {"model"}
    assert sorted((one.arguments["value"], one.is_error) for one in run.tool_calls) == [(1, False), (2, True)]


async def test_a_limit_of_model_calls_ends_the_run(make: MakeModel, connected: TrainerServer) -> None:
    agent = create_agent(make(), [double], middleware=[ModelCallLimitMiddleware(run_limit=2)])
    connected.engine["answers"][:] = ['call double {"value": 1}'] * 2
    run = await rollout(agent, "go")
    assert paths(run) == ["model", "model"]
    assert len(run.completion_ids) == 2


async def test_edited_context_and_hidden_data_are_what_the_model_saw(make: MakeModel, connected: TrainerServer) -> None:
    middleware: list[AgentMiddleware[Any, Any]] = [
        PIIMiddleware("email", strategy="redact"),
        ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=0, placeholder="[gone]")]),
        TodoListMiddleware(),
    ]
    agent = create_agent(make(), [double], middleware=middleware)
    todos = 'call write_todos {"todos": [{"content": "double", "status": "in_progress"}]}'
    connected.engine["answers"][:] = [todos, 'call double {"value": 4}', "the end"]
    run = await rollout(agent, HumanMessage("write to ada@example.com").text)
    assert paths(run) == ["model"] * 3
    assert "ada@example.com" not in str([call.messages for call in run.completions])
    assert "[REDACTED_EMAIL]" in str(run.completions[0].messages)
    assert "[gone]" in str(run.completions[2].messages)
    assert [one.tool for one in run.tool_calls] == ["write_todos", "double"]
    assert "double" in str(run.tool_calls[0].result)
    assert len(trained(run, "model")) == 3


async def test_a_chain_of_middleware(make: MakeModel, connected: TrainerServer) -> None:
    """Selection, summary, fallback and retry at once: each completion in its place, and each counts once."""
    tools: list[BaseTool] = [double, triple]
    agent = create_agent(
        make("no-such-policy", max_retries=0),
        tools,
        middleware=[
            SummarizationMiddleware(make(), trigger=("messages", 3), keep=("messages", 1)),
            LLMToolSelectorMiddleware(model=make(), max_tools=1),
            ModelFallbackMiddleware(make()),
        ],
        name="boss",
    )
    connected.engine["answers"][:] = [
        '{"tools": ["double"]}', 'call double {"value": 2}', "the summary", '{"tools": ["double"]}', "the end",
    ]  # fmt: skip
    run = await rollout(agent, "go")
    assert paths(run) == [
        "boss/model/tool_selection",
        "boss/model",
        "boss/model",
        "boss/SummarizationMiddleware.before_model",
        "boss/model/tool_selection",
        "boss/model",
        "boss/model",
    ]
    assert [call.trainable for call in run.completions] == [True, False, True, True, True, False, True]
