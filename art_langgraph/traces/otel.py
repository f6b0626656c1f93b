"""OpenTelemetry: spans and events of its GenAI conventions, in the JSON of OTLP.

A file is what the collector's file exporter or a file exporter of an SDK writes: one `TracesData` or `LogsData` a line.
Spans of the Python SDK's console exporter are read too. Messages are where one of these versions of the conventions
puts them:

- attributes `gen_ai.input.messages`, `gen_ai.output.messages` and `gen_ai.system_instructions` of a span, or of the
  event `gen_ai.client.inference.operation.details`;
- events `gen_ai.user.message`, …, `gen_ai.choice` (until version 1.36), as log records or as events of a span;
- attributes `gen_ai.prompt.0.content`, … of a span (OpenLLMetry), or `llm.input_messages.0.message.content`, …
  (OpenInference);
- attributes `gen_ai.prompt` and `gen_ai.completion` of a span: the inputs and outputs of a run of LangSmith, as JSON;
- the events as JSON in the attribute `events` of a span;
- a log record of AWS's agents, whose body has `input` and `output`. Their spans and log records may lie in CloudWatch's
  form: one a line, with attributes and bodies that are plain JSON.

A trace is a run. Results of evaluations (`gen_ai.evaluation.result`) are feedback.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from art_langgraph.traces.grouping import Parts, RunPart
from art_langgraph.traces.messages import (
    answer_of,
    as_text,
    conversation_of,
    literal,
    openai_messages,
    openai_tools,
    parse_json,
    parse_record,
    system_messages,
    tool_call,
    without_dumps,
)
from art_langgraph.traces.problems import Unreadable
from art_langgraph.traces.run import ForeignRun, ModelCall, parse_time, tool_record
from art_langgraph.trajectory import ToolCall

_MESSAGE = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_DETAILS = "gen_ai.client.inference.operation.details"
_NO_CALLS = re.compile(r"(?:execute|invoke|create)_.*|embeddings|retrieval|chain")
"""Operations that are no call of a model, but of what calls one."""
_SWITCH_ON = (
    "switch the capture of content on: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true (or span_and_event), "
    "and export logs as well where it writes events"
)
_NO_CONTENT = "traces whose spans have no messages"
_FACTS = re.compile(
    r"gen_ai\.(?!.*(?:message|content|prompt|completion|input|output))|gen_ai\.usage\.|openinference\.span\.kind$"
    r"|(?:server|client|error|exception|http|url|net|network|service|telemetry|thread|code|process|host|otel|rpc|peer)\."
)
"""Attributes with facts of a span, which have no messages."""
_MOST_NAMES = 8
"""Names of attributes that a message shows."""
_LEVELS = 12
"""Levels of the name of an attribute that is a part of a message."""


def parts(value: Any) -> Parts:
    """The spans, and the log records that belong to a trace, of a record."""
    record = dict(value)
    if "traceId" in record and "spanId" in record and "resourceSpans" not in record:  # CloudWatch
        if "startTimeUnixNano" in record:
            yield _span(record)
        else:
            yield RunPart({"is": "event", "span": record["spanId"], **_event(record)}, run=record["traceId"])
    elif spans := record.get("resourceSpans", record.get("resource_spans")):
        for scope in _scopes(spans, "scopeSpans"):
            for span in scope.get("spans", ()):
                yield partial(_span, span)
    elif logs := record.get("resourceLogs", record.get("resource_logs")):
        for scope in _scopes(logs, "scopeLogs"):
            for log in _get(scope, "logRecords") or ():
                yield partial(_log, log)
    elif isinstance(context := record.get("context"), dict) and "trace_id" in context:
        yield _console_span(record, context)
    elif "agentAliasId" in record or "orchestrationTrace" in (record.get("trace") or ()):
        raise Unreadable(
            "traces that Amazon Bedrock's agents return, in which messages are texts of objects",
            "export the spans of the agent by OpenTelemetry, or messages as JSON",
        )
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
                span = _span_record(part.record["span"], None, "", part.record["time"], part.record["time"])
                spans[part.record["span"] or ""] = span
            span["events"].append(part.record)
    timeline = sorted(spans.values(), key=lambda span: span["start"])
    root = next((span for span in timeline if span["parent"] not in spans), timeline[0])
    calls = [call for span in timeline if (call := _call(span, spans))]
    attributes = root["attributes"]
    foreign = ForeignRun(
        source="otel",
        id=key,
        calls=calls,
        tool_calls=[_tool_call(span) for span in timeline if _kind(span["attributes"]) == "tool"],
        error=root["error"],
        start_time=root["start"],
        seconds=max(span["end"] for span in timeline) - root["start"],
        name=attributes.get("gen_ai.workflow.name") or attributes.get("gen_ai.agent.name") or root["name"],
        thread_id=next((str(c) for span in timeline for name in _THREADS if (c := span["attributes"].get(name))), None),
    )
    if not calls:
        raise _without_messages(timeline)
    if _kind(attributes) != "llm":
        foreign.input, foreign.output = (_state(attributes, names) for names in (_INPUTS, _OUTPUTS))
    for span in timeline:
        for event in span["events"]:
            if event["name"] == "gen_ai.evaluation.result":
                result = event["attributes"]
                score = result.get("gen_ai.evaluation.score.value")
                if isinstance(score, (int, float)):
                    foreign.scores[str(result.get("gen_ai.evaluation.name", "score"))].append(float(score))
    return foreign


_THREADS = ("gen_ai.conversation.id", "session.id", "langsmith.metadata.thread_id")
_INPUTS = ("gen_ai.prompt", "input.value")
_OUTPUTS = ("gen_ai.completion", "output.value")


def _state(attributes: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The input or output of a graph, where the span of the run has it as JSON; None: it has none."""
    value = parse_record(next((attributes[name] for name in names if name in attributes), None))
    return without_dumps(value) if isinstance(value, (dict, list)) and value else None


def _without_messages(spans: Sequence[Mapping[str, Any]]) -> Unreadable:
    """Says which attributes and events the spans of a trace have instead of messages."""
    names = [re.sub(r"\.\d+(?=\.|$)", ".N", str(name)) for span in spans for name in span["attributes"]]
    names += [str(event["name"]) for span in spans for event in span["events"] if event["name"]]
    unknown = sorted({name for name in names if not _FACTS.match(name)})
    if not unknown:
        return Unreadable(_NO_CONTENT, _SWITCH_ON)
    more = f" and {len(unknown) - _MOST_NAMES} more" if len(unknown) > _MOST_NAMES else ""
    return Unreadable(
        _NO_CONTENT,
        f"found were {', '.join(name[:80] for name in unknown[:_MOST_NAMES])}{more}, and none of them is known to have "
        f"messages: tell the project which system wrote them; or {_SWITCH_ON}",
    )


def _log(log: Mapping[str, Any]) -> Parts:
    if run := _get(log, "traceId"):
        yield RunPart({"is": "event", "span": _get(log, "spanId"), **_event(log)}, run=run)


def _scopes(resources: Any, name: str) -> Iterator[Mapping[str, Any]]:
    for resource in resources:
        yield from _get(resource, name) or ()


def _get(record: Mapping[str, Any], name: str) -> Any:
    """A field, by its name in camel case or in snake case."""
    return record.get(name, record.get(re.sub(r"([A-Z])", lambda match: f"_{match[0].lower()}", name)))


def _span(span: Mapping[str, Any]) -> RunPart:
    status = span.get("status") or {}
    is_error = status.get("code") in (2, "STATUS_CODE_ERROR")
    record = _span_record(
        _get(span, "spanId"),
        _get(span, "parentSpanId") or None,
        span.get("name") or "",
        _seconds(_get(span, "startTimeUnixNano")),
        _seconds(_get(span, "endTimeUnixNano")),
        attributes=_attributes(span.get("attributes")),
        events=[_event(event) for event in span.get("events") or ()],
        error=(status.get("message") or "error") if is_error else None,
    )
    return RunPart(record, run=_get(span, "traceId"))


def _span_record(span_id: Any, parent: Any, name: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    """The form of a span in this module; more: its attributes, events and error, where it has any."""
    record = {"is": "span", "id": span_id, "parent": parent, "name": name, "start": start, "end": end}
    return {**record, "attributes": {}, "events": [], "error": None, **more}


def _console_span(span: Mapping[str, Any], context: Mapping[str, Any]) -> RunPart:
    """A span as the Python SDK's `to_json` writes it."""
    status = span.get("status") or {}
    record = _span_record(
        context["span_id"],
        span.get("parent_id"),
        span.get("name") or "",
        parse_time(span["start_time"]),
        parse_time(span.get("end_time") or span["start_time"]),
        attributes=span.get("attributes") or {},
        events=[
            _event_record(event["name"], parse_time(event["timestamp"]), event.get("attributes") or {})
            for event in span.get("events") or ()
        ],
        error=(status.get("description") or "error") if status.get("status_code") == "ERROR" else None,
    )
    return RunPart(record, run=context["trace_id"].removeprefix("0x"))


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event of a span, or a log record."""
    attributes = _attributes(event.get("attributes"))
    name = event.get("name") or _get(event, "eventName") or attributes.get("event.name") or ""
    body = event.get("body") or None
    if isinstance(body, dict) and len(body) == 1 and next(iter(body)).lower().endswith("value"):
        body = _value(body)
    return _event_record(name, _seconds(_get(event, "timeUnixNano")), attributes, body)


def _event_record(name: str, time: float, attributes: Mapping[str, Any], body: Any = None) -> dict[str, Any]:
    return {"name": name, "time": time, "attributes": attributes, "body": body}


def _attributes(pairs: Any) -> dict[str, Any]:
    if isinstance(pairs, dict):  # plain JSON
        return pairs
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


def _kind(attributes: Mapping[str, Any]) -> str | None:
    """What a span is: "llm", "tool" or another kind, in lower case. None: it does not say."""
    kind = attributes.get("openinference.span.kind") or attributes.get("langsmith.span.kind")
    operation = attributes.get("gen_ai.operation.name")
    if kind is None and operation is not None:
        kind = "tool" if operation == "execute_tool" else "chain" if _NO_CALLS.fullmatch(str(operation)) else "llm"
    return None if kind is None else str(kind).lower()


def _call(span: Mapping[str, Any], spans: Mapping[str, Mapping[str, Any]]) -> ModelCall | None:
    """None: the span has no messages, or is not a call of a model."""
    attributes = span["attributes"]
    if _kind(attributes) not in ("llm", None):
        return None
    messages, answer = _messages(span)
    if not messages:
        return None
    agent, tools = attributes.get("gen_ai.agent.name"), _tools(attributes)
    above, span_ids = spans.get(span["parent"] or ""), set[str]()
    while (agent is None or tools is None) and above is not None and above["id"] not in span_ids:
        span_ids.add(above["id"])
        if above["attributes"].get("gen_ai.operation.name") == "invoke_agent":
            agent = agent or above["attributes"].get("gen_ai.agent.name")
            tools = tools or _tools(above["attributes"])
        above = spans.get(above["parent"] or "")
    models = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
    return ModelCall(
        messages=messages,
        answer=answer,
        tools=tools,
        model=next((attributes[name] for name in models if attributes.get(name)), None),
        start_time=span["start"],
        seconds=max(span["end"] - span["start"], 0.0),
        error=span["error"] or (None if answer else "the span has no answer"),
        node=_node(attributes),
        agent=agent,
    )


def _node(attributes: Mapping[str, Any]) -> Any:
    metadata = parse_json(attributes.get("metadata"))
    inner = metadata.get("langgraph_node") if isinstance(metadata, dict) else None
    return inner or next((v for name, v in attributes.items() if name.endswith(".langgraph_node")), None)


def _tools(attributes: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    if tools := openai_tools(attributes.get("gen_ai.tool.definitions")):
        return tools
    for prefix in ("llm.request.functions", "gen_ai.tool"):
        if tools := openai_tools(_read_list(attributes, prefix)):
            return tools
    schemas = [_inner(entry, "tool").get("json_schema") for entry in _read_list(attributes, "llm.tools")]
    parameters = parse_json(attributes.get("model_request_parameters"))
    functions = parameters.get("function_tools") if isinstance(parameters, dict) else None
    return openai_tools(schemas) or openai_tools(functions)


Exchange = tuple[list[dict[str, Any]], dict[str, Any] | None]
"""The messages of a call, and its answer."""


def _messages(span: Mapping[str, Any]) -> Exchange:
    """The messages of a call and its answer: of its attributes, also where these are empty; else of the first of
    `_READERS` that finds messages."""
    if (exchange := _from_attributes(span)) is not None:
        return exchange
    return next(filter(lambda exchange: exchange[0], (read(span) for read in _READERS)), ([], None))


def _from_attributes(span: Mapping[str, Any]) -> Exchange | None:
    attributes = dict(span["attributes"])
    for event in span["events"]:  # some write an event for what goes in, and one for what comes out
        if event["name"] == _DETAILS:
            attributes.update(event["attributes"])
    if not (messages := attributes.get("gen_ai.input.messages")):
        return None
    messages = openai_messages(messages)
    system = system_messages(attributes.get("gen_ai.system_instructions"))
    return [*system, *messages], _first(attributes.get("gen_ai.output.messages"))


def _from_events(span: Mapping[str, Any]) -> Exchange:
    attribute = parse_json(span["attributes"].get("events"))
    events = (
        [_event_of_attribute(event) for event in attribute if isinstance(event, dict)]
        if isinstance(attribute, list)
        else []
    )
    # Stable, where all have the same time.
    return _of_events([*events, *sorted(span["events"], key=lambda event: event["time"])])


def _from_numbered(
    span: Mapping[str, Any], inputs: str, outputs: str, message_of: Callable[..., dict[str, Any]]
) -> Exchange:
    """Messages whose fields are attributes of their own, by number.

    Args:
        span: The span.
        inputs: Prefix of the request's messages.
        outputs: Prefix of the answers.
        message_of: Makes a message of its fields, and of the role that its place gives.
    """
    messages = [message_of(fields) for fields in _read_list(span["attributes"], inputs)]
    if not messages:
        return [], None
    answers = [message_of(fields, "assistant") for fields in _read_list(span["attributes"], outputs)]
    return messages, answers[0] if answers else None


def _from_openinference(span: Mapping[str, Any]) -> Exchange:
    return _from_numbered(span, "llm.input_messages", "llm.output_messages", _of_inference)


def _from_openllmetry(span: Mapping[str, Any]) -> Exchange:
    return _from_numbered(span, "gen_ai.prompt", "gen_ai.completion", _of_fields)


def _from_langsmith(span: Mapping[str, Any]) -> Exchange:
    if not (request := parse_record(span["attributes"].get("gen_ai.prompt"))):
        return [], None
    system, messages = conversation_of(request)
    return [*system, *openai_messages(messages)], answer_of(span["attributes"].get("gen_ai.completion"))


_READERS = (_from_events, _from_openinference, _from_openllmetry, _from_langsmith)
"""Where else the messages of a call may be, in the order in which the places are tried."""


def _event_of_attribute(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event of the attribute `events`, in the form of a span's events."""
    return _event_record(str(event.get("event.name") or event.get("name") or ""), 0.0, event)


def _of_events(events: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The messages of events until version 1.36 of the conventions, and of those of AWS's agents."""
    messages: list[dict[str, Any]] = []
    answer = None
    for event in events:
        content = event["body"] if event["body"] is not None else event["attributes"]
        content = parse_json(content.get("gen_ai.event.content", content)) if isinstance(content, dict) else content
        if match := _MESSAGE.fullmatch(event["name"]):
            messages += _of_event(match[1], content)
        elif event["name"] == "gen_ai.choice" and answer is None:
            message = parse_json(content.get("message")) if isinstance(content, dict) else content
            fields = message if isinstance(message, dict) else {"content": message}
            answer = _of_event("assistant", {**content, **fields} if isinstance(content, dict) else fields)[0]
        elif event["name"] == "gen_ai.content.prompt":
            messages += openai_messages(event["attributes"].get("gen_ai.prompt"))
        elif event["name"] == "gen_ai.content.completion" and answer is None:
            answer = _first(event["attributes"].get("gen_ai.completion"))
        elif isinstance(content, dict) and isinstance(content.get("input"), dict) and "messages" in content["input"]:
            messages += _of_agent(content["input"])
            answers = _of_agent(content["output"]) if isinstance(content.get("output"), dict) else []
            answer = answers[-1] if answers else answer
    return messages, answer


def _of_agent(side: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of one side of a log record of AWS's agents, whose contents are texts of blocks, in objects."""
    messages = []
    for message in side.get("messages") or ():
        content = message.get("content")
        if isinstance(content, dict):
            content = content.get("content") or content.get("message") or ""
        messages.append({**message, "content": parse_json(content)})
    return openai_messages(messages)


def _of_event(role: str, content: Any) -> list[dict[str, Any]]:
    """A message of an event until version 1.36 of the conventions."""
    if not isinstance(content, dict):
        return openai_messages(
            [{"role": role, **({} if content is None else {"content": as_text(parse_record(content))})}]
        )
    parse_record(content.get("content"))  # raises for the text of objects
    message = {
        key: parse_json(content[key]) if key == "tool_calls" or _is_blocks(content[key]) else content[key]
        for key in ("content", "tool_calls")
        if content.get(key) or (key == "content" and content.get(key) is not None)
    }
    if isinstance(message.get("content"), list) and "toolResult" in str(message["content"][:1]):
        role = "tool"
    if role == "tool":
        message["tool_call_id"] = str(content.get("id") or content.get("tool_call_id") or "")
    return openai_messages([{"role": role, **message}])


def _is_blocks(content: Any) -> bool:
    """Whether a content is the text of blocks, as AWS's agents write it."""
    return isinstance(content, str) and content.startswith('[{"') and isinstance(parse_json(content), list)


def _first(answers: Any) -> dict[str, Any] | None:
    """The first of the answers of a call."""
    record = parse_record(answers)
    return answer_of(record[0] if isinstance(record, list) and record else record)


def _read_list(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """A list whose parts are attributes of their own (`prefix.0.role`), or one attribute as a list.

    Returns:
        Its entries, as dictionaries of what follows their numbers.
    """
    whole = parse_json(attributes.get(prefix))
    if isinstance(whole, list):
        return [entry for entry in whole if isinstance(entry, dict)]
    root: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.startswith(f"{prefix}."):
            *path, last = name[len(prefix) + 1 :].split(".")
            node = root
            for step in path[:_LEVELS]:
                inner = node.setdefault(step, {})
                node = inner if isinstance(inner, dict) else {}
            node[last] = value
    return _sort_entries(root)


def _sort_entries(entries: Any) -> list[dict[str, Any]]:
    if isinstance(entries, list):
        return [entry for entry in entries if isinstance(entry, dict)]
    numbers = sorted((int(key), key) for key in entries or () if key.isascii() and key.isdigit())
    return [entries[key] for _, key in numbers if isinstance(entries[key], dict)]


def _inner(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What an entry holds under a name; the entry itself where it holds nothing there."""
    inner = entry.get(name)
    return inner if isinstance(inner, dict) else entry


def _of_inference(entry: Mapping[str, Any], role: str | None = None) -> dict[str, Any]:
    """A message of OpenInference. role: that of a message whose place says it."""
    message = _inner(entry, "message")
    calls = [_inner(call, "tool_call") for call in _sort_entries(message.get("tool_calls"))]
    contents = [_inner(part, "message_content") for part in _sort_entries(message.get("contents"))]
    if name := message.get("function_call_name"):
        calls.append({"name": name, "arguments": message.get("function_call_arguments_json")})
    content = parse_record(message.get("content"))
    if content is None and contents:
        content = [
            {"type": str(part.get("type")), **({"text": part["text"]} if "text" in part else {})} for part in contents
        ]
    fields = {key: message.get(key) for key in ("role", "tool_call_id", "name")}
    return _message({**fields, "content": content}, [{**call, **_inner(call, "function")} for call in calls], role)


def _of_fields(fields: Mapping[str, Any], role: str | None = None) -> dict[str, Any]:
    """A message of OpenLLMetry. role: that of a message whose place says it."""
    whole = {key: fields.get(key) for key in ("role", "tool_call_id", "name")}
    return _message(
        {**whole, "content": parse_record(fields.get("content"))}, _sort_entries(fields.get("tool_calls")), role
    )


def _message(fields: dict[str, Any], calls: Sequence[Mapping[str, Any]], role: str | None) -> dict[str, Any]:
    message = {key: value for key, value in fields.items() if value is not None or key == "content"}
    if role is not None:
        message.setdefault("role", role)
    if calls:
        message["tool_calls"] = [tool_call(call.get("id"), call.get("name"), call.get("arguments")) for call in calls]
    return openai_messages([message])[0]


def _tool_call(span: Mapping[str, Any]) -> ToolCall:
    attributes = span["attributes"]
    arguments = parse_json(
        next((attributes[name] for name in ("gen_ai.tool.call.arguments", *_INPUTS) if name in attributes), None)
    )
    result = next((attributes[name] for name in ("gen_ai.tool.call.result", *_OUTPUTS) if name in attributes), None)
    whole = parse_json(result)
    if isinstance(whole, dict):
        output = without_dumps(whole.get("output", whole))
        result = output.get("content", output) if isinstance(output, dict) else output
    if isinstance(arguments, dict) and isinstance(text := arguments.get("input_str"), str):
        arguments = literal(text.strip()) or text
    name = attributes.get("gen_ai.tool.name") or attributes.get("tool.name")
    return tool_record(
        str(name or span["name"].removeprefix("execute_tool ")),
        arguments,
        result,
        span["error"],
        is_error=span["error"] is not None,
        tool_call_id=attributes.get("gen_ai.tool.call.id"),
        started=span["start"],
        seconds=max(span["end"] - span["start"], 0.0),
    )


def _seconds(nanoseconds: Any) -> float:
    return int(nanoseconds or 0) / 1e9
