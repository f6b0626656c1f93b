"""LangSmith: runs as its SDK (`langsmith.schemas.Run`) and its bulk export have them, feedback, and trajectories.

A file has runs, one a line, in any order: those of `Client.runs.query` (`langsmith.types.Run`: types in capitals, and
`metadata` beside `extra`), of the older `Client.list_runs`, of a `langsmith` export, or rows of the bulk export
(Parquet), whose objects are JSON texts. Feedback (`langsmith.schemas.Feedback`, as `Client.list_feedback` gives
it) may be among them or in a file of its own; the averages in `feedback_stats` count where there is none.

A trajectory is a conversation of a trace or a thread: messages with the roles system, human, ai and tool, whose content
is a text or a list of blocks (text, reasoning, tool_call). It is in one record, which is one of two things:

- an answer of `POST /v1/trajectory` with `format: "ui"`: `{"items": [{"type": "message", "message": …}],
  "next_cursor": null}`. A message of the model has `available_tools`, where the request included `tool_definitions`;
- an example of a dataset: `inputs["messages"]`, and `metadata` with `trajectory_format: "messages"`. What each message
  of the model could call is in `metadata["smithtune_source"]["assistant_runs"]`, by `message_index`.

Source: what smithtune reads and writes (github.com/langchain-ai/smithtune, September 2026: `curation.py`,
`bindings.py`, `dataset.py`). LangSmith's SDK 0.15.1 has no types for trajectories.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from langsmith.schemas import FeedbackBase, Run

from art_langgraph.traces.grouping import Parts, RunPart
from art_langgraph.traces.messages import answer_of, openai_messages, openai_tools, parse_json, without_dumps
from art_langgraph.traces.problems import Unreadable
from art_langgraph.traces.run import ForeignRun, ModelCall, tool_record
from art_langgraph.trajectory import ToolCall

_JSON = ("inputs", "outputs", "extra", "serialized", "events", "feedback_stats", "tags")
"""Fields that the bulk export writes as JSON texts."""
_PAGE = Unreadable("pages of trajectories that go on", "put the items of all pages, by next_cursor, into one line")
_NO_MESSAGES = Unreadable("trajectories with items that are no messages", 'request them with "format": "ui"')


def parts(value: Any) -> Parts:
    """The runs, the feedback or the trajectory of a record."""
    record = dict(value)
    if (trajectory := _trajectory_of(record)) is not None:
        text = json.dumps(trajectory["messages"], sort_keys=True)
        yield RunPart(trajectory, run=f"trajectory {hashlib.sha256(text.encode()).hexdigest()}")
        return
    if "key" in record and ("run_id" in record or "trace_id" in record) and "run_type" not in record:
        feedback = FeedbackBase.model_validate({"id": record.get("run_id"), "run_id": None, "trace_id": None, **record})
        run = str(feedback.trace_id) if feedback.trace_id else None
        yield RunPart(feedback.model_dump(mode="json"), run=run, refers=str(feedback.run_id))
        return
    if "run_type" not in record and "dataset_id" in record:
        raise Unreadable("examples of a dataset", "`load_scenarios` reads a dataset as it is: no import is needed")
    if "run_id" in record and "id" not in record:
        record["id"] = record.pop("run_id")
    record.pop("attachments", None)  # files beside the run, which nothing here reads
    for name in _JSON:
        record[name] = parse_json(record.get(name))
    if isinstance(kind := record.get("run_type"), str):
        record["run_type"] = kind.lower()
    if isinstance(metadata := parse_json(record.get("metadata")), dict):
        extra = record["extra"] or {}
        record["extra"] = {**extra, "metadata": {**(extra.get("metadata") or {}), **metadata}}
    if record.get("parent_run_ids") and not record.get("parent_run_id"):
        record["parent_run_id"] = record["parent_run_ids"][-1]
    children = parse_json(record.pop("child_runs", None)) or ()
    root = Run(**{name: item for name, item in record.items() if item is not None})
    whole = {**root.model_dump(mode="json"), "feedback_stats": root.feedback_stats}
    yield RunPart(whole, str(root.trace_id), str(root.id))
    for child in children:
        yield partial(_child, str(root.trace_id), child)


def _child(trace: str, run: Mapping[str, Any]) -> Parts:
    yield from parts({"trace_id": trace, **run})


def run(key: str, parts: Sequence[RunPart]) -> ForeignRun:
    """A trace or a trajectory as a run. key: the trace's id."""
    if (first := parts[0].record).get("answer_tools") is not None:
        return _trajectory(first, repeat_lines=[part.line for part in parts[1:]])
    feedback = [FeedbackBase.model_validate(part.record) for part in parts if "key" in part.record]
    runs = [Run(**part.record) for part in parts if "key" not in part.record]
    if not runs:
        raise Unreadable("pieces of feedback for runs that are not in the file", "export these runs too")
    runs.sort(key=lambda run: (run.start_time, run.dotted_order))
    root = next((run for run in runs if str(run.id) == key or run.parent_run_id is None), runs[0])
    foreign = ForeignRun(
        source="langsmith",
        id=key,
        calls=[call for run in runs if run.run_type == "llm" and (call := _call(run))],
        tool_calls=[_tool_call(run) for run in runs if run.run_type == "tool"],
        error=_error(root),
        start_time=root.start_time.timestamp(),
        seconds=root.latency or 0.0,
        name=root.name,
        thread_id=root.metadata.get("thread_id"),
        run_id=str(root.id),
        metadata={**root.metadata, "tags": root.tags or []},
    )
    if root.run_type != "llm":
        foreign.input = _unwrap_input(without_dumps(root.inputs)) if root.inputs else None
        foreign.output = without_dumps(root.outputs)
    elif not foreign.calls:
        raise Unreadable("text completions", "only runs of chat models and of graphs can be imported")
    _score(foreign, root, runs, feedback)
    return foreign


def _trajectory_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The `messages` of a trajectory, and `answer_tools`: the tools of each message of the model; None: it is none."""
    metadata = parse_json(record.get("metadata")) or {}
    if "items" in record:
        if record.get("next_cursor") is not None:
            raise _PAGE
        if any(item.get("type", "message") != "message" or "message" not in item for item in record["items"]):
            raise _NO_MESSAGES
        messages = [dict(item["message"]) for item in record["items"]]
        tools = {at: message.pop("available_tools", None) for at, message in enumerate(messages)}
        metadata = {}
    elif "run_type" not in record and metadata.get("trajectory_format") == "messages":
        messages = parse_json(record["inputs"])["messages"]
        runs = (metadata.pop("smithtune_source", None) or {}).get("assistant_runs", ())
        tools = {run["message_index"]: run.get("tools") for run in runs}
    else:
        return None
    answers = [at for at, message in enumerate(messages) if message["role"] in ("ai", "assistant", "model")]
    return {"messages": messages, "answer_tools": [tools.get(at) for at in answers], "metadata": metadata}


def _trajectory(record: Mapping[str, Any], repeat_lines: list[int]) -> ForeignRun:
    """A trajectory as a run: each message of the model is an answer.

    Thoughts are left out, as smithtune does by default, because few chat templates render them. So are messages of the
    model that have nothing else.
    """
    messages: list[dict[str, Any]] = []
    calls: list[ModelCall] = []
    tools, metadata = iter(record["answer_tools"]), record["metadata"]
    for message in openai_messages(record["messages"]):
        message.pop("reasoning_content", None)
        if message["role"] == "assistant":
            definitions = openai_tools(next(tools, None))
            if not message.get("content") and not message.get("tool_calls"):
                continue
            calls.append(ModelCall(list(messages), message, definitions))
        messages.append(message)
    first = len(calls[0].messages) if calls else len(messages)
    turn = itertools.takewhile(lambda message: message["role"] != "user", messages[first:])
    contents = [message["content"] for message in turn if message["role"] == "assistant"]
    texts = [content for content in contents if content and isinstance(content, str)]
    return ForeignRun(
        source="langsmith",
        id=None,
        calls=calls or [ModelCall(messages, None, error="the trajectory has no answer")],
        answer=texts[-1] if texts else None,
        thread_id=metadata["source_scope_id"] if metadata.get("source_scope") == "thread" else None,
        metadata=metadata,
        repeat_lines=repeat_lines,
    )


def _score(foreign: ForeignRun, root: Run, runs: Iterable[Run], feedback: Sequence[FeedbackBase]) -> None:
    """Gives a run its feedback. That of the root counts before that of a run inside it."""
    scores = [(item, item.score if item.score is not None else item.value) for item in feedback]
    numbers = [(item, float(score)) for item, score in scores if isinstance(score, (bool, int, float))]
    of_root = {item.key for item, _ in numbers if item.run_id == root.id}
    for item, number in numbers:
        if item.run_id == root.id or item.key not in of_root:
            foreign.scores[item.key].append(number)
    if not feedback:
        for run in (root, *runs):
            for name, stats in (run.feedback_stats or {}).items():
                average = stats.get("avg") if isinstance(stats, Mapping) else None
                if isinstance(average, (int, float)) and name not in foreign.scores:
                    foreign.scores[name].append(float(average))


def _call(run: Run) -> ModelCall | None:
    """None: the run is no call of a chat model."""
    inputs, outputs = parse_json(run.inputs), parse_json(run.outputs) or {}
    messages = inputs.get("messages", inputs.get("input"))
    if messages is None:
        return None
    invocation = (run.extra or {}).get("invocation_params") or {}
    answer = answer_of(outputs["output"] if set(outputs) == {"output"} else outputs)
    return ModelCall(
        messages=openai_messages(messages),
        answer=answer,
        tools=openai_tools(inputs.get("tools") or invocation.get("tools")),
        model=run.metadata.get("ls_model_name") or invocation.get("model") or inputs.get("model") or run.name,
        start_time=run.start_time.timestamp(),
        seconds=run.latency or 0.0,
        error=_error(run) or (None if answer else "the run has no answer"),
        node=run.metadata.get("langgraph_node"),
        agent=run.metadata.get("lc_agent_name"),
    )


def _tool_call(run: Run) -> ToolCall:
    arguments = parse_json(run.inputs.get("input")) if set(run.inputs) == {"input"} else run.inputs
    output: Any = parse_json((run.outputs or {}).get("output", run.outputs or None))
    if isinstance(output, dict) and (content := without_dumps(output)) is not output and isinstance(content, dict):
        output = content.get("content")
    return tool_record(
        run.name,
        arguments if arguments is not None else {"input": None},
        output,
        _error(run),
        is_error=run.error is not None,
        tool_call_id=(run.extra or {}).get("tool_call_id"),
        node=run.metadata.get("langgraph_node"),
        started=run.start_time.timestamp(),
        seconds=run.latency or 0.0,
    )


def _unwrap_input(inputs: Any) -> Any:
    """The graph's input: LangSmith wraps what is no dict as `{"input": …}`."""
    return inputs["input"] if isinstance(inputs, dict) and set(inputs) == {"input"} else inputs


def _error(run: Run) -> str | None:
    """What a run raised, without the traceback."""
    return run.error.strip().splitlines()[0][:2000] if run.error and run.error.strip() else None
