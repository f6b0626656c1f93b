"""Langfuse: observations, traces and scores, as its API, its UI and its blob storage export have them.

Fields are in camel case (API, UI) or snake case (blob storage); inputs and outputs are objects, or texts of them. A
file has one record a line, or is an array, a page of the API (`{"data": […]}`) or one downloaded trace, which has its
observations and scores inside. Observations, traces and scores may be in files of their own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from art_langgraph.traces.grouping import Parts, RunPart
from art_langgraph.traces.messages import (
    answer_of,
    conversation_of,
    openai_messages,
    openai_tools,
    parse_json,
    parse_record,
    without_dumps,
)
from art_langgraph.traces.problems import Unreadable
from art_langgraph.traces.run import ForeignRun, ModelCall, parse_time, tool_record
from art_langgraph.trajectory import ToolCall

_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_NUMBERS = ("NUMERIC", "BOOLEAN", None)
_NO_ID = "without id "
_NO_SCORE = Unreadable("scores that are no numbers", "categories, texts and corrections are not rewards")


def parts(value: Any) -> Parts:
    """The observations, traces and scores of a record."""
    record = {_CAPITAL.sub(r"_\1", name).lower(): item for name, item in dict(value).items()}
    if isinstance(pages := record.get("data"), list) and "id" not in record:
        for item in pages:
            yield partial(parts, item)
        return
    inner = record.get("trace")
    trace: dict[str, Any] = inner if isinstance(inner, dict) else record
    if isinstance(observations := parse_json(record.get("observations")), list) and any(
        isinstance(observation, dict) for observation in observations
    ):
        items = [item for item in (*observations, *(parse_json(record.get("scores")) or ())) if isinstance(item, dict)]
        trace_id = next(filter(None, (trace.get("id"), *map(_trace_of, items))), None) or _make_trace_id(record)
        yield partial(parts, {**trace, "id": trace_id, "observations": None, "scores": None})
        for item in items:
            rest = {name: field for name, field in item.items() if name not in ("traceId", "trace_id")}
            yield partial(parts, {**rest, "trace_id": _trace_of(item) or trace_id})
        return
    if ("name" in record and ("data_type" in record or "string_value" in record)) or "value" in record:
        if record.get("data_type") not in _NUMBERS:
            raise _NO_SCORE
        subject = record.get("subject")
        subject = subject if isinstance(subject, dict) else {}
        of_trace = subject.get("id") if subject.get("kind", "trace") == "trace" else subject.get("traceId")
        run = record.get("trace_id") or of_trace
        yield RunPart({**record, "is": "score"}, run=run, refers=record.get("observation_id"))
    elif "type" in record and "start_time" in record:
        own = record.get("id") or None
        if not (run := record.get("trace_id") or own):
            raise Unreadable("observations that have neither an id nor a trace", "export them with their ids")
        yield RunPart({**record, "is": "observation"}, run=run, id=own)
    elif "timestamp" in record and "id" in record:
        yield RunPart({**record, "is": "trace"}, run=record["id"], id=record["id"])
    else:
        raise Unreadable("records that are no observation, trace or score of Langfuse", "export one of these tables")


def _trace_of(item: Mapping[str, Any]) -> Any:
    """The id of the trace that an observation or a score belongs to; None: it does not say."""
    return item.get("traceId") or item.get("trace_id") or None


def _make_trace_id(record: Mapping[str, Any]) -> str:
    """What stands for the id of a trace that has none."""
    return _NO_ID + hashlib.sha256(json.dumps(record, sort_keys=True, default=str).encode()).hexdigest()


def run(key: str, parts: Sequence[RunPart]) -> ForeignRun:
    """A trace as a run. key: its id."""
    kinds: dict[str, list[dict[str, Any]]] = {"score": [], "observation": [], "trace": []}
    for part in parts:
        kinds[part.record["is"]].append(part.record)
    observations = sorted(kinds["observation"], key=lambda observation: parse_time(observation["start_time"]))
    trace = kinds["trace"][0] if kinds["trace"] else {}
    if not observations and not trace:
        raise Unreadable("scores of traces that are not in the file", "export the observations of these traces too")
    root = next((o for o in observations if o.get("is_root_observation") or not o.get("parent_observation_id")), {})
    whole = trace if trace.get("input") not in (None, "") else root
    foreign = ForeignRun(
        source="langfuse",
        id=None if key.startswith(_NO_ID) else key,
        calls=[call for observation in observations if (call := _call(observation))],
        tool_calls=[_tool_call(observation) for observation in observations if observation["type"] == "TOOL"],
        error=_error(root),
        start_time=parse_time(root.get("start_time") or trace["timestamp"]),
        seconds=_seconds(root),
        name=trace.get("name") or root.get("trace_name") or root.get("name"),
        thread_id=trace.get("session_id") or root.get("session_id"),
        metadata=_object(trace.get("metadata") or root.get("metadata")) | {"tags": whole.get("tags") or []},
    )
    if whole.get("type") != "GENERATION":
        foreign.input = _state(whole.get("input"))
        foreign.output = _state(whole.get("output"))
    if not foreign.calls and foreign.input is None:
        raise Unreadable("traces without a model call and without an input", "export the field group `io` as well")
    for score in kinds["score"]:
        number = score.get("value")
        if isinstance(number, (bool, int, float)):
            foreign.scores[score["name"]].append(float(number))
    return foreign


def _call(observation: Mapping[str, Any]) -> ModelCall | None:
    request = parse_record(observation.get("input"))
    if observation["type"] != "GENERATION" or request in (None, ""):
        return None
    tools: Any = observation.get("tool_definitions")
    if isinstance(tools, dict):
        tools = [{"name": name, **_object(tool)} for name, tool in tools.items()]
    if isinstance(request, dict) and "role" not in request:
        tools = request.get("tools") or _object(request.get("toolConfig")).get("tools") or tools
    system, messages = conversation_of(request)
    if isinstance(messages, list):  # LangChain's handler writes the definitions of tools among the messages
        tools = [message["content"] for message in messages if _is_definition(message)] or tools
        messages = [message for message in messages if not _is_definition(message)]
    answer = answer_of(observation.get("output"))
    metadata = _object(observation.get("metadata"))
    return ModelCall(
        messages=[*system, *openai_messages(messages)],
        answer=answer,
        tools=openai_tools(tools),
        model=observation.get("provided_model_name") or observation.get("model") or observation.get("name"),
        start_time=parse_time(observation["start_time"]),
        seconds=_seconds(observation),
        error=_error(observation) or (None if answer else "the observation has no output"),
        node=metadata.get("langgraph_node"),
        agent=metadata.get("lc_agent_name"),
    )


def _is_definition(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") != "tool" or message.get("tool_call_id"):
        return False
    content = parse_json(message.get("content"))
    return isinstance(content, dict) and (content.get("type") == "function" or "parameters" in content)


def _tool_call(observation: Mapping[str, Any]) -> ToolCall:
    arguments, output = parse_json(observation.get("input")), parse_json(observation.get("output"))
    if isinstance(output, dict) and "content" in output:
        output = output["content"]
    return tool_record(
        observation.get("name") or "",
        arguments,
        output,
        _error(observation),
        is_error=observation.get("level") == "ERROR",
        node=_object(observation.get("metadata")).get("langgraph_node"),
        started=parse_time(observation["start_time"]),
        seconds=_seconds(observation),
    )


def _state(value: Any) -> Any:
    """A trace's input or output; None where it is empty."""
    value = parse_record(value)
    return None if value in (None, "", {}, []) else without_dumps(value)


def _object(value: Any) -> dict[str, Any]:
    value = parse_json(value)
    return value if isinstance(value, dict) else {}


def _error(observation: Mapping[str, Any]) -> str | None:
    return (observation.get("status_message") or "error") if observation.get("level") == "ERROR" else None


def _seconds(observation: Mapping[str, Any]) -> float:
    if not observation.get("end_time"):
        return 0.0
    return max(parse_time(observation["end_time"]) - parse_time(observation["start_time"]), 0.0)
