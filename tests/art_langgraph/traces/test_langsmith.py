"""LangSmith: runs that its tracer makes, its wrappers' outputs, the bulk export, feedback."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_core.tracers.langchain import LangChainTracer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langsmith._internal._serde import dumps_json
from langsmith.schemas import Example, Feedback, Run
from langsmith.types import Run as QueriedRun

from art_langgraph.traces import ForeignRun, read_runs
from art_langgraph.traces.problems import Skips
from tests.support.runs.foreign_runs import (
    ANSWER,
    ASKED,
    CALLS,
    CONVERSATION,
    COUNTS,
    RAIN,
    WEATHER,
    counted,
    essence,
    write,
)

STARTED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def read(path: Path, *records: Any) -> tuple[list[ForeignRun], list[str]]:
    skips = Skips()
    runs = list(read_runs("langsmith", write(path / "runs.jsonl", *records), skips=skips))
    return runs, list(skips)


def record(run_type: str = "llm", **more: Any) -> dict[str, Any]:
    """A run as `list_runs` returns it and `model_dump_json` writes it."""
    id = more.pop("id", str(uuid.uuid4()))
    run = Run(
        id=id,
        name=more.pop("name", "ChatOpenAI"),
        run_type=run_type,
        start_time=more.pop("start_time", STARTED),
        end_time=more.pop("end_time", STARTED.replace(second=2)),
        trace_id=more.pop("trace_id", id),
        **more,
    )
    return json.loads(run.model_dump_json())


def feedback(run_id: str, key: str, score: Any, **more: Any) -> dict[str, Any]:
    given = Feedback(
        id=uuid.uuid4(),
        created_at=STARTED,
        modified_at=STARTED,
        run_id=run_id,
        trace_id=more.pop("trace_id", None),
        key=key,
        score=score,
        **more,
    )
    return json.loads(given.model_dump_json())


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return RAIN["content"]


class Model(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=[WEATHER], **kwargs)


def traced() -> list[dict[str, Any]]:
    """The runs of a graph with a tool, as LangChain's tracer hands them to LangSmith's client, by its serialiser."""
    found: list[Any] = []

    class Tracer(LangChainTracer):
        def _persist_run_single(self, run: Any) -> None:
            pass

        def _update_run_single(self, run: Any) -> None:
            found.append(json.loads(dumps_json({key: getattr(run, key) for key in FIELDS})))

    call = AIMessage("", tool_calls=[{"name": "weather", "args": {"city": "Oslo"}, "id": "call_1"}])
    model = Model(messages=iter([call, AIMessage(ANSWER["content"])])).bind_tools([weather])

    def agent(state: MessagesState) -> Any:
        return {"messages": [model.invoke([("system", "Use tools."), *state["messages"]])]}

    graph = (
        StateGraph(MessagesState)
        .add_node("agent", agent)
        .add_node("tools", ToolNode([weather]))
        .add_edge(START, "agent")
        .add_conditional_edges("agent", tools_condition)
        .add_edge("tools", "agent")
        .compile(name="forecaster")
    )
    config = {
        "callbacks": [Tracer(client=_NoClient())],
        "configurable": {"thread_id": "th-1"},
        "metadata": {"user": "u"},
    }
    graph.invoke({"messages": [("user", "Weather in Oslo?")]}, config)
    return found


FIELDS = (
    "id",
    "name",
    "run_type",
    "start_time",
    "end_time",
    "inputs",
    "outputs",
    "extra",
    "error",
    "parent_run_id",
    "trace_id",
    "dotted_order",
    "tags",
)


class _NoClient:
    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def test_a_graph_that_langchain_traced(tmp_path: Path) -> None:
    runs = traced()
    root = next(run for run in runs if run["parent_run_id"] is None)
    (run,), left_out = read(tmp_path, *runs, feedback(root["id"], "user_score", 1))
    assert left_out == []
    assert (run.name, run.id, run.run_id, run.thread_id) == ("forecaster", root["id"], root["id"], "th-1")
    assert run.scenario().input == {"messages": [{"role": "user", "content": "Weather in Oslo?"}]}
    (demonstration,) = run.demonstrations()
    assert essence(demonstration.messages) == essence(CONVERSATION)
    assert (demonstration.tools, demonstration.answers("all")) == ([WEATHER], [2, 4])
    assert [(call.node, call.error) for call in run.calls] == [("agent", None)] * 2
    (used,) = run.tool_calls
    assert (used.tool, used.arguments, used.result, used.tool_call_id) == (
        "weather",
        {"city": "Oslo"},
        RAIN["content"],
        "call_1",
    )
    assert run.reward(None) == 1.0
    recorded = run.trajectory(1.0)
    assert (recorded.final_text, recorded.metadata["user"]) == (ANSWER["content"], "u")


def test_the_tracer_and_another_serialisation_give_the_same_scenario(tmp_path: Path) -> None:
    (traced_run,), _ = read(tmp_path, *traced())
    plain = record("chain", name="forecaster", inputs={"messages": [{"type": "human", "content": "Weather in Oslo?"}]})
    (plain_run,), _ = read(tmp_path, plain)
    assert plain_run.scenario() == traced_run.scenario()


@pytest.mark.parametrize(
    "outputs",
    [
        {"choices": [{"message": ANSWER, "finish_reason": "stop"}], "model": "gpt-4o"},
        {"generations": [{"text": ANSWER["content"], "message": {"type": "ai", "content": ANSWER["content"]}}]},
        {"generations": [[{"text": ANSWER["content"]}]]},
        {"message": ANSWER},
        {"output": ANSWER["content"]},
        {"messages": [*ASKED, ANSWER]},
        {"role": "assistant", "content": [{"type": "text", "text": ANSWER["content"]}]},
        {
            "output": [
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": ANSWER["content"]}],
                }
            ]
        },
    ],
)
def test_outputs_of_wrapped_clients(tmp_path: Path, outputs: Any) -> None:
    inputs = {"messages": ASKED, "model": "gpt-4o", "tools": [WEATHER]}
    (run,), left_out = read(tmp_path, record(inputs=inputs, outputs=outputs))
    assert essence(run.demonstrations()[0].messages) == essence([*ASKED, ANSWER])
    assert (run.calls[0].tools, run.calls[0].model, left_out) == ([WEATHER], "gpt-4o", [])
    assert run.scenario().input == {"messages": ASKED}


def test_anthropic_blocks(tmp_path: Path) -> None:
    use = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": RAIN["content"]}
    messages = [*ASKED, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    (run,), _ = read(tmp_path, record(inputs={"messages": messages}, outputs={"message": ANSWER}))
    assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)


def test_sub_agents_give_demonstrations_of_their_own(tmp_path: Path) -> None:
    root = record("chain", inputs={"messages": ASKED[1:]}, outputs={"messages": [*ASKED[1:], ANSWER]})
    inside = {"trace_id": root["id"], "parent_run_id": root["id"]}
    other = [{"role": "user", "content": "Summarise."}]
    calls = [
        record(inputs={"messages": ASKED}, outputs={"message": CALLS}, **inside),
        record(inputs={"messages": other}, outputs={"message": ANSWER}, start_time=STARTED.replace(second=1), **inside),
        record(
            inputs={"messages": CONVERSATION[:4]},
            outputs={"message": ANSWER},
            start_time=STARTED.replace(second=2),
            **inside,
        ),
    ]
    (run,), _ = read(tmp_path, calls[2], calls[0], root, calls[1])
    assert [essence(found.messages) for found in run.demonstrations()] == [
        essence([*other, ANSWER]),
        essence(CONVERSATION),
    ]


def test_a_bulk_export_in_parquet(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    row = record(
        "chain", inputs={"input": "Weather in Oslo?"}, outputs={"output": "rain"}, extra={"metadata": {"a": 1}}
    )
    stats = {"user_score": {"n": 2, "avg": 0.5, "values": {}}}
    row = {key: json.dumps(value) if isinstance(value, (dict, list)) else value for key, value in row.items()}
    row |= {"feedback_stats": json.dumps(stats), "start_time": STARTED, "end_time": STARTED}
    parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / "runs.parquet")
    (run,) = read_runs("langsmith", tmp_path / "runs.parquet")
    assert (run.scenario().input, run.metrics, run.start_time) == (
        "Weather in Oslo?",
        {"user_score": 0.5},
        STARTED.timestamp(),
    )


def test_runs_of_the_newer_query_are_the_same_runs(tmp_path: Path) -> None:
    older = traced()
    newer = []
    for run in older:
        parents = [step[-36:] for step in run["dotted_order"].split(".")[:-1]]
        extra = {key: value for key, value in run["extra"].items() if key != "metadata"}
        facts = {"run_type": run["run_type"].upper(), "metadata": run["extra"]["metadata"], "extra": extra}
        fields = {key: value for key, value in run.items() if key != "parent_run_id"}
        newer.append(json.loads(QueriedRun(**{**fields, **facts, "parent_run_ids": parents}).model_dump_json()))
    root = next(run for run in newer if not run["parent_run_ids"])
    root["feedback_stats"] = {"user_score": {"n": 1, "avg": 1.0}}
    (expected,), _ = read(tmp_path, *older)
    (run,), left_out = read(tmp_path, *reversed(newer))
    assert (left_out, run.metrics, run.thread_id) == ([], {"user_score": 1.0}, "th-1")
    assert (run.fingerprint, run.demonstrations()) == (expected.fingerprint, expected.demonstrations())
    assert (run.name, run.tool_calls, run.scenario()) == (expected.name, expected.tool_calls, expected.scenario())


def test_feedback_of_a_run_inside_counts_for_the_trace_and_that_of_the_root_first(tmp_path: Path) -> None:
    root = record("chain", inputs={"messages": ASKED})
    child = record(
        inputs={"messages": ASKED}, outputs={"message": ANSWER}, trace_id=root["id"], parent_run_id=root["id"]
    )
    given = [
        feedback(child["id"], "correct", True),
        feedback(child["id"], "helpful", 0),
        feedback(child["id"], "exact", 0),
        feedback(child["id"], "exact", 1),
        feedback(root["id"], "helpful", 1, trace_id=root["id"]),
        feedback(root["id"], "tone", None, value="kind"),
        feedback(str(uuid.uuid4()), "helpful", 1),
    ]
    (run,), left_out = read(tmp_path, *given[:2], root, *given[2:], child)
    assert run.metrics == {"correct": 1.0, "helpful": 1.0, "exact": 0.5}
    assert left_out == ["pieces of feedback for runs that are not in the file (1: line 8); export these runs too"]


def test_a_failed_run_has_its_error_and_a_nested_one_its_children(tmp_path: Path) -> None:
    child = record(inputs={"messages": ASKED}, error="RateLimitError: slow down\n\nTraceback …")
    root = record("chain", inputs={"messages": ASKED}, error="RateLimitError: slow down\nTraceback …")
    (run,), _ = read(tmp_path, {**root, "child_runs": [{**child, "parent_run_id": root["id"], "trace_id": root["id"]}]})
    assert (run.error, run.calls[0].error, run.calls[0].answer) == (*["RateLimitError: slow down"] * 2, None)
    assert run.demonstrations() == []


THREAD = [
    {"role": "system", "content": ASKED[0]["content"]},
    {"role": "human", "id": "h1", "content": [{"type": "text", "text": ASKED[1]["content"]}]},
    {
        "role": "ai",
        "id": "a1",
        "content": [
            {"type": "reasoning", "reasoning": "A tool knows."},
            {"type": "tool_call", "id": "call_1", "name": "weather", "args": {"city": "Oslo"}},
        ],
    },
    RAIN,
    {"role": "ai", "id": "a2", "content": [{"type": "reasoning", "reasoning": "Done?"}]},
    {"role": "ai", "id": "a3", "content": ANSWER["content"]},
    {"role": "human", "content": "Thanks."},
    {"role": "ai", "content": [{"type": "text", "text": "Bye."}]},
]
"""A trajectory of two turns, in the form of LangSmith. One message of the model has thoughts alone."""
TURNS = [*CONVERSATION, {"role": "user", "content": "Thanks."}, {"role": "assistant", "content": "Bye."}]


def items(tools: dict[int, Any], **more: Any) -> dict[str, Any]:
    """The answer of `POST /v1/trajectory`. tools: those of the messages of the model, by their place."""
    messages = [message | ({"available_tools": tools[at]} if at in tools else {}) for at, message in enumerate(THREAD)]
    facts = {"trace_id": "t", "run_id": "r"}
    return {
        "items": [{"type": "message", "message": message, "metadata": facts} for message in messages],
        "next_cursor": None,
        **more,
    }


def example(tools: dict[int, Any]) -> dict[str, Any]:
    """An example of a dataset, as `list_examples` returns it and `model_dump_json` writes it."""
    runs = [{"message_index": at, "run_id": "r", "trace_id": "t", "tools": each} for at, each in tools.items()]
    metadata = {
        "trajectory_format": "messages",
        "source_scope": "thread",
        "source_scope_id": "th-1",
        "smithtune_source": {"schema_version": 1, "assistant_runs": runs},
    }
    row = Example(id=uuid.uuid4(), dataset_id=uuid.uuid4(), inputs={"messages": THREAD}, metadata=metadata)
    return json.loads(row.model_dump_json())


def test_a_trajectory_is_the_same_run_in_a_dataset_and_from_the_api(tmp_path: Path) -> None:
    tools = {at: [WEATHER] for at in (2, 4, 5, 7)}
    (run,), left_out = read(tmp_path, example(tools), items(tools))
    assert (left_out, run.repeat_lines, run.thread_id) == ([], [2], "th-1")
    (demonstration,) = run.demonstrations()
    assert essence(demonstration.messages) == essence(TURNS)
    assert (demonstration.tools, demonstration.answers("all")) == ([WEATHER], [2, 4, 6])
    assert not any("reasoning_content" in message for message in demonstration.messages)
    scenario = run.scenario()
    assert (scenario.input, scenario.metadata) == ({"messages": ASKED}, {"answer": ANSWER["content"]})
    assert (run.trajectory(None).final_text, run.lacks_tools) == ("Bye.", False)


def test_each_answer_of_a_trajectory_is_imitated_with_the_tools_of_its_own_call(tmp_path: Path) -> None:
    (run,), _ = read(tmp_path, items({2: [WEATHER], 4: [WEATHER], 5: [WEATHER], 7: []}))
    first, last = run.demonstrations()
    assert (essence(first.messages), first.tools, first.answers("all")) == (essence(CONVERSATION), [WEATHER], [2, 4])
    assert (essence(last.messages), last.tools, last.answers("all")) == (essence(TURNS), None, [6])


def test_a_trajectory_whose_tools_were_not_requested_says_so(tmp_path: Path) -> None:
    (run,), _ = read(tmp_path, items({}))
    assert run.lacks_tools


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"id": "x"}, "records that are none of langsmith"),
        (items({}, next_cursor="page-2"), "pages of trajectories that go on"),
        ({"items": [{"type": "event", "message": {}}]}, "trajectories with items that are no messages"),
        ({"items": [{"id": "x", "run_type": "LLM"}]}, "trajectories with items that are no messages"),
        ({"dataset_id": str(uuid.uuid4()), "inputs": {}, "outputs": {}}, "examples of a dataset"),
        (record(inputs={"prompt": "2+2="}, outputs={"generations": [[{"text": "4"}]]}), "text completions"),
        (record(inputs={"messages": [{"kind": "?"}]}), "with messages of an unknown form"),
    ],
)
def test_what_is_no_run_is_left_out_with_the_reason(tmp_path: Path, line: Any, why: str) -> None:
    runs, left_out = read(tmp_path, line)
    assert not runs
    assert left_out[0].startswith(why)


def test_import_counts(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    runs = traced()
    root = next(run for run in runs if run["parent_run_id"] is None)
    stray = feedback("00000000-0000-4000-8000-000000000000", "user_score", 1)
    numbers, row = counted("langsmith", "a traced graph", tmp_path, *runs, feedback(root["id"], "user_score", 1), stray)
    assert numbers == (1, 1, 1, 1)
    record_property(COUNTS, row)
