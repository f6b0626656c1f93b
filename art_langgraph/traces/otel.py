"""OpenTelemetry: spans and events of its GenAI conventions, in the JSON of OTLP.

A file is what the collector's file exporter or a file exporter of an SDK writes: one `TracesData` or `LogsData` a line.
Spans of the Python SDK's console exporter are read too. Messages are where one of these versions of the conventions
puts them:

- attributes `gen_ai.input.messages`, `gen_ai.output.messages` and `gen_ai.system_instructions` of a span, or of the
  event `gen_ai.client.inference.operation.details`;
- events `gen_ai.user.message`, …, `gen_ai.choice` (until version 1.36), as log records or as events of a span;
- attributes `gen_ai.prompt.0.content`, … of a span (OpenLLMetry).

A trace is a run. Results of evaluations (`gen_ai.evaluation.result`) are feedback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from art_langgraph.traces.grouping import RunPart
from art_langgraph.traces.messages import as_text, merged, openai_messages, openai_tools, parsed
from art_langgraph.traces.problems import Unreadable
from art_langgraph.traces.run import ForeignRun, ModelCall
from art_langgraph.trajectory import ToolCall

_MESSAGE = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_DETAILS = "gen_ai.client.inference.operation.details"
_INDEXED = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(.+)")
_INDEXED_CALL = re.compile(r"tool_calls\.(\d+)\.(name|arguments|id)")
_INDEXED_TOOL = re.compile(r"(?:llm\.request\.functions|gen_ai\.tool)\.(\d+)\.(name|description|parameters)")
_NO_CONTENT = Unreadable(
    "traces whose spans have no messages",
    "switch the capture of content on: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true (or span_and_event), "
    "and export logs as well where it writes events",
)


def parts(value: Any) -> Iterator[RunPart]:
    """The spans, and the log records that belong to a trace, of a record."""
    record = dict(value)
    if spans := record.get("resourceSpans", record.get("resource_spans")):
        for scope in _scopes(spans, "scopeSpans"):
            for span in scope.get("spans", ()):
                yield _span(span)
    elif logs := record.get("resourceLogs", record.get("resource_logs")):
        for scope in _scopes(logs, "scopeLogs"):
            for log in _get(scope, "logRecords") or ():
                if _get(log, "traceId"):
                    event = _event(log)
                    yield RunPart({"is": "event", "span": _get(log, "spanId"), **event}, run=_get(log, "traceId"))
    elif isinstance(context := record.get("context"), dict) and "trace_id" in context:
        yield _console_span(record, context)
    elif "resourceMetrics" in record:
        raise Unreadable("metrics, which say nothing of single runs", "export traces and logs")
    else:
        raise Unreadable(
            "records without spans and without log records", "is it OTLP in JSON, as file exporters write it?"
        )


def run(key: str, parts: Sequence[RunPart]) -> ForeignRun:
    """A trace as a run. key: its id."""
    spans = {part.record["id"]: part.record for part in parts if part.record["is"] == "span"}
    for part in parts:
        if part.record["is"] == "event":
            span = spans.get(part.record["span"] or "")
            if span is None:  # its spans were not exported, or not sampled
                made = {"id": part.record["span"], "parent": None, "name": "", "start": part.record["time"]}
                span = spans[part.record["span"] or ""] = {
                    **made,
                    "end": made["start"],
                    "attributes": {},
                    "events": [],
                    "error": None,
                }
            span["events"].append(part.record)
    ordered = sorted(spans.values(), key=lambda span: span["start"])
    root = next((span for span in ordered if span["parent"] not in spans), ordered[0])
    calls = [call for span in ordered if (call := _call(span, spans))]
    attributes = root["attributes"]
    foreign = ForeignRun(
        source="otel",
        id=key,
        calls=calls,
        tool_calls=[
            _tool_call(span) for span in ordered if span["attributes"].get("gen_ai.operation.name") == "execute_tool"
        ],
        error=root["error"],
        started=root["start"],
        seconds=max(span["end"] for span in ordered) - root["start"],
        name=attributes.get("gen_ai.workflow.name") or attributes.get("gen_ai.agent.name") or root["name"],
        thread_id=next((c for span in ordered if (c := span["attributes"].get("gen_ai.conversation.id"))), None),
    )
    if not calls:
        raise _NO_CONTENT
    for span in ordered:
        for event in span["events"]:
            if event["name"] == "gen_ai.evaluation.result":
                given = event["attributes"]
                score = given.get("gen_ai.evaluation.score.value")
                if isinstance(score, (int, float)):
                    foreign.scores[str(given.get("gen_ai.evaluation.name", "score"))].append(float(score))
    return foreign


def _scopes(resources: Any, name: str) -> Iterator[Mapping[str, Any]]:
    for resource in resources:
        yield from _get(resource, name) or ()


def _get(record: Mapping[str, Any], name: str) -> Any:
    """A field, by its name in camel case or in snake case."""
    return record.get(name, record.get(re.sub(r"([A-Z])", lambda match: f"_{match[0].lower()}", name)))


def _span(span: Mapping[str, Any]) -> RunPart:
    status = span.get("status") or {}
    failed = status.get("code") in (2, "STATUS_CODE_ERROR")
    record = {
        "is": "span",
        "id": _get(span, "spanId"),
        "parent": _get(span, "parentSpanId") or None,
        "name": span.get("name") or "",
        "start": _seconds(_get(span, "startTimeUnixNano")),
        "end": _seconds(_get(span, "endTimeUnixNano")),
        "attributes": _attributes(span.get("attributes")),
        "events": [_event(event) for event in span.get("events") or ()],
        "error": (status.get("message") or "error") if failed else None,
    }
    return RunPart(record, run=_get(span, "traceId"))


def _console_span(span: Mapping[str, Any], context: Mapping[str, Any]) -> RunPart:
    """A span as the Python SDK's `to_json` writes it."""
    status = span.get("status") or {}
    events = [
        {
            "name": event["name"],
            "time": _iso(event["timestamp"]),
            "attributes": event.get("attributes") or {},
            "body": None,
        }
        for event in span.get("events") or ()
    ]
    record = {
        "is": "span",
        "id": context["span_id"],
        "parent": span.get("parent_id"),
        "name": span.get("name") or "",
        "start": _iso(span["start_time"]),
        "end": _iso(span.get("end_time") or span["start_time"]),
        "attributes": span.get("attributes") or {},
        "events": events,
        "error": (status.get("description") or "error") if status.get("status_code") == "ERROR" else None,
    }
    return RunPart(record, run=context["trace_id"].removeprefix("0x"))


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event of a span, or a log record."""
    attributes = _attributes(event.get("attributes"))
    name = event.get("name") or _get(event, "eventName") or attributes.get("event.name") or ""
    body = _value(event["body"]) if event.get("body") else None
    return {"name": name, "time": _seconds(_get(event, "timeUnixNano")), "attributes": attributes, "body": body}


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair["key"]: _value(pair.get("value") or {}) for pair in pairs or ()}


def _value(value: Mapping[str, Any]) -> Any:
    """An `AnyValue` of OTLP as plain data."""
    for name, item in value.items():
        kind = name.replace("_", "").lower()
        if kind == "arrayvalue":
            return [_value(each) for each in item.get("values") or ()]
        if kind == "kvlistvalue":
            return _attributes(item.get("values"))
        if kind == "intvalue":
            return int(item)
        if kind == "doublevalue":
            return float(item)
        return item
    return None


def _call(span: Mapping[str, Any], spans: Mapping[str, Mapping[str, Any]]) -> ModelCall | None:
    """None: the span has no messages, or is not a call of a model."""
    attributes = span["attributes"]
    operation = attributes.get("gen_ai.operation.name")
    if operation in ("invoke_agent", "create_agent", "execute_tool", "embeddings", "invoke_workflow", "retrieval"):
        return None
    messages, answer = _messages(span)
    if not messages:
        return None
    agent = attributes.get("gen_ai.agent.name")
    above = spans.get(span["parent"] or "")
    while agent is None and above is not None:
        if above["attributes"].get("gen_ai.operation.name") == "invoke_agent":
            agent = above["attributes"].get("gen_ai.agent.name")
        above = spans.get(above["parent"] or "")
    return ModelCall(
        messages=messages,
        answer=answer,
        tools=openai_tools(attributes.get("gen_ai.tool.definitions")) or _indexed_tools(attributes),
        model=attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model"),
        started=span["start"],
        seconds=max(span["end"] - span["start"], 0.0),
        error=span["error"] or (None if answer else "the span has no answer"),
        agent=agent,
    )


def _messages(span: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The messages of a call, and its answer."""
    details = [event["attributes"] for event in span["events"] if event["name"] == _DETAILS]
    for attributes in (span["attributes"], *details):
        if given := parsed(attributes.get("gen_ai.input.messages")):
            asked = openai_messages(given)
            if instructions := parsed(attributes.get("gen_ai.system_instructions")):
                asked = [*_system(instructions), *asked]
            return asked, _first(parsed(attributes.get("gen_ai.output.messages")))
    messages: list[dict[str, Any]] = []
    answer = None
    for event in sorted(span["events"], key=lambda event: event["time"]):  # stable, where all have the same time
        content = event["body"] if event["body"] is not None else event["attributes"]
        content = parsed(content.get("gen_ai.event.content", content)) if isinstance(content, dict) else content
        if matched := _MESSAGE.fullmatch(event["name"]):
            messages += _of_event(matched[1], content)
        elif event["name"] == "gen_ai.choice" and answer is None:
            message = parsed(content.get("message")) if isinstance(content, dict) else None
            given = message if isinstance(message, dict) else {"content": message}
            answer = _of_event("assistant", {**content, **given} if isinstance(content, dict) else given)[0]
        elif event["name"] == "gen_ai.content.prompt":
            messages += openai_messages(parsed(event["attributes"].get("gen_ai.prompt")))
        elif event["name"] == "gen_ai.content.completion" and answer is None:
            answer = _first(parsed(event["attributes"].get("gen_ai.completion")))
    return (messages, answer) if messages else _indexed(span["attributes"])


def _of_event(role: str, content: Any) -> list[dict[str, Any]]:
    """A message of an event until version 1.36 of the conventions."""
    if not isinstance(content, dict):
        return [{"role": role, "content": as_text(content or "")}]
    message = {
        key: parsed(content[key]) if key == "tool_calls" else content[key]
        for key in ("content", "tool_calls")
        if content.get(key)
    }
    if role == "tool":
        message["tool_call_id"] = str(content.get("id") or content.get("tool_call_id") or "")
    return openai_messages([{"content": None if "tool_calls" in message else "", "role": role, **message}])


def _system(instructions: Any) -> list[dict[str, Any]]:
    if isinstance(instructions, str):
        return [{"role": "system", "content": instructions}]
    texts = [str(part.get("content") or "") for part in instructions if isinstance(part, dict)]
    return [{"role": "system", "content": "\n".join(texts)}]


def _first(answers: Any) -> dict[str, Any] | None:
    """The first of the answers of a call."""
    if not answers:
        return None
    given = answers if isinstance(answers, str) else answers[0] if isinstance(answers, list) else answers
    if isinstance(given, str):
        return {"role": "assistant", "content": given}
    said = [message for message in merged(openai_messages(given)) if message["role"] == "assistant"]
    return said[0] if said else None


def _indexed(attributes: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Messages whose fields are attributes of their own."""
    by_kind: dict[str, dict[int, dict[str, Any]]] = {"prompt": {}, "completion": {}}
    for name, value in attributes.items():
        if matched := _INDEXED.fullmatch(name):
            message = by_kind[matched[1]].setdefault(int(matched[2]), {})
            if call := _INDEXED_CALL.fullmatch(matched[3]):
                message.setdefault("tool_calls", {}).setdefault(int(call[1]), {})[call[2]] = value
            else:
                message[matched[3]] = value
    prompt, completion = ([_of_fields(fields[at]) for at in sorted(fields)] for fields in by_kind.values())
    return prompt, completion[0] if completion else None


def _of_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": call.get("id") or "",
            "type": "function",
            "function": {"name": call.get("name"), "arguments": call.get("arguments") or "{}"},
        }
        for _, call in sorted((fields.get("tool_calls") or {}).items())
    ]
    message = {"role": fields.get("role") or "assistant", "content": parsed(fields.get("content"))}
    if calls:
        message["tool_calls"] = calls
    if identity := fields.get("tool_call_id"):
        message["tool_call_id"] = identity
    return openai_messages([message])[0]


def _indexed_tools(attributes: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        if matched := _INDEXED_TOOL.fullmatch(name):
            tools.setdefault(int(matched[1]), {})[matched[2]] = value
    return openai_tools([tools[at] for at in sorted(tools)])


def _tool_call(span: Mapping[str, Any]) -> ToolCall:
    attributes = span["attributes"]
    arguments, result = parsed(attributes.get("gen_ai.tool.call.arguments")), attributes.get("gen_ai.tool.call.result")
    return ToolCall(
        tool=str(attributes.get("gen_ai.tool.name") or span["name"].removeprefix("execute_tool ")),
        arguments=arguments if isinstance(arguments, dict) else {} if arguments is None else {"input": arguments},
        result=span["error"] or (None if result is None else as_text(result)),
        is_error=span["error"] is not None,
        tool_call_id=attributes.get("gen_ai.tool.call.id"),
        started=span["start"],
        seconds=max(span["end"] - span["start"], 0.0),
    )


def _seconds(nanoseconds: Any) -> float:
    return int(nanoseconds or 0) / 1e9


def _iso(text: str) -> float:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
