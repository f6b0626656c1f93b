"""OpenTelemetry: every place where the GenAI conventions have put messages. Real exporters: test_real_exporters.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_langgraph.traces import ForeignRun, import_runs, read_runs
from art_langgraph.traces.problems import Skips
from tests.support.runs.foreign_runs import (
    ANSWER,
    ASKED,
    CALLS,
    CONVERSATION,
    COUNTS,
    RAIN,
    WEATHER,
    attributes,
    counted,
    essence,
    log,
    logs,
    span,
    traces,
    write,
)

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o", "gen_ai.response.model": "gpt-4o-2024"}
TOOLS = {"gen_ai.tool.definitions": json.dumps([{"type": "function", **WEATHER["function"]}])}


def read(path: Path, *records: Any) -> tuple[list[ForeignRun], list[str]]:
    skips = Skips()
    runs = list(read_runs("otel", write(path / "x.jsonl", *records), skips=skips))
    return runs, list(skips)


def text(message: dict[str, Any]) -> dict[str, Any]:
    return {"role": message["role"], "parts": [{"type": "text", "content": message["content"]}]}


PARTS = [
    *map(text, ASKED),
    {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": "call_1", "name": "weather", "arguments": {"city": "Oslo"}}],
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "response": RAIN["content"]}]},
]
SAID = [{**text(ANSWER), "finish_reason": "stop"}]


def attribute_spans(encode: Any) -> list[Any]:
    """An agent's trace: two model calls and a tool, with the messages on the spans."""
    root = span("1", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "forecaster"}, name="invoke_agent")
    first = {**CHAT, **TOOLS, "gen_ai.input.messages": encode(PARTS[:2]), "gen_ai.output.messages": encode([PARTS[2]])}
    tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.call.id": "call_1",
        "gen_ai.tool.call.arguments": '{"city": "Oslo"}',
        "gen_ai.tool.call.result": RAIN["content"],
    }
    second = {**CHAT, **TOOLS, "gen_ai.input.messages": encode(PARTS), "gen_ai.output.messages": encode(SAID)}
    return [
        root,
        span("2", first, parent="1", at=1),
        span("3", tool, parent="1", at=2),
        span("4", second, parent="1", at=3),
    ]


def test_the_text_of_a_part_in_a_field_of_that_name(tmp_path: Path) -> None:
    answer = json.dumps([{"role": "assistant", "parts": [{"type": "text", "text": "Hello"}]}])
    values = {**CHAT, "gen_ai.input.messages": json.dumps(PARTS[:2]), "gen_ai.output.messages": answer}
    (run,), _ = read(tmp_path, traces(span("1", values)))
    assert (run.calls[0].answer or {})["content"] == "Hello"


def test_texts_of_objects_in_attributes_and_events_are_left_out(tmp_path: Path) -> None:
    said = "AIMessage(content='It rains.', additional_kwargs={})"
    asked = {**CHAT, "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi"}
    inference = {**CHAT, "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "Hi"}
    line = traces(
        span("1", {**asked, "gen_ai.completion.0.content": said}),
        span("2", {**inference, "llm.output_messages.0.message.content": said}, trace="b" * 32),
        span("3", CHAT, trace="c" * 32),
    )
    choice = log("gen_ai.choice", {"message": {"content": said}}, span="3", trace="c" * 32)
    question = log("gen_ai.user.message", {"content": "Hi"}, span="3", trace="c" * 32)
    runs, (left_out,) = read(tmp_path, line, logs(question, choice))
    assert not runs
    assert left_out.startswith("with messages that are Python's text of objects, or were cut off (3")


def test_events_without_the_capture_of_content_are_no_messages(tmp_path: Path) -> None:
    question = log("gen_ai.user.message", {"role": "user"}, span="1")
    choice = log("gen_ai.choice", {"index": 0, "message": {"role": "assistant"}}, span="1")
    runs, (left_out,) = read(tmp_path, traces(span("1", CHAT)), logs(question, choice))
    assert not runs
    assert left_out.startswith("with messages that have neither content nor calls of tools (1: line 1)")


def test_spans_beside_a_bad_one_are_read(tmp_path: Path) -> None:
    broken = span("9", {}, trace="b" * 32, startTimeUnixNano="soon")
    (run,), left_out = read(tmp_path, traces(broken, *attribute_spans(json.dumps)))
    assert (len(run.calls), len(left_out)) == (2, 1)


@pytest.mark.parametrize("encode", [json.dumps, lambda value: value], ids=["text", "structured"])
def test_messages_on_spans(tmp_path: Path, encode: Any) -> None:
    spans = attribute_spans(encode)
    result = {
        "name": "gen_ai.evaluation.result",
        "timeUnixNano": "1",
        "attributes": attributes({"gen_ai.evaluation.name": "relevance", "gen_ai.evaluation.score.value": 0.5}),
    }
    spans[3]["events"] = [result]
    (run,), left_out = read(tmp_path, traces(spans[3], spans[0]), traces(spans[1], spans[2]))
    assert left_out == []
    assert (run.id, run.name, run.start_time, run.seconds) == ("a" * 32, "forecaster", 1_700_000_000, 4.0)
    (demonstration,) = run.demonstrations()
    assert essence(demonstration.messages) == essence(CONVERSATION)
    assert (demonstration.tools, demonstration.answers("all")) == ([WEATHER], [2, 4])
    assert [(call.model, call.agent) for call in run.calls] == [("gpt-4o-2024", "forecaster")] * 2
    assert [(used.tool, used.arguments, used.result) for used in run.tool_calls] == [
        ("weather", {"city": "Oslo"}, RAIN["content"])
    ]
    assert (run.scenario().input, run.metrics) == ({"messages": ASKED}, {"relevance": 0.5})


def test_system_instructions_and_thoughts(tmp_path: Path) -> None:
    said = {
        "role": "assistant",
        "parts": [{"type": "reasoning", "content": "Hm."}, *SAID[0]["parts"]],
        "finish_reason": "stop",
    }
    values = {
        **CHAT,
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": ASKED[0]["content"]}]),
        "gen_ai.input.messages": json.dumps(PARTS[1:2]),
        "gen_ai.output.messages": json.dumps([said]),
    }
    (run,), _ = read(tmp_path, traces(span("1", values)))
    assert run.calls[0].messages == ASKED
    assert run.calls[0].answer == {**ANSWER, "reasoning_content": "Hm."}


def test_the_event_that_has_the_details_of_an_inference(tmp_path: Path) -> None:
    details = {"gen_ai.input.messages": PARTS, "gen_ai.output.messages": SAID}
    name = "gen_ai.client.inference.operation.details"
    (run,), _ = read(tmp_path, traces(span("1", CHAT)), logs(log(name, "", span="1", **details)))
    assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)


def test_an_event_for_what_goes_in_and_one_for_what_comes_out(tmp_path: Path) -> None:
    sides = {"gen_ai.input.messages": PARTS, "gen_ai.output.messages": SAID}
    inside = [
        {
            "name": "gen_ai.client.inference.operation.details",
            "timeUnixNano": "1",
            "attributes": attributes({key: json.dumps(value)}),
        }
        for key, value in sides.items()
    ]
    cycle = span("2", {"gen_ai.operation.name": "execute_event_loop_cycle"}, parent="1", events=inside)
    agent = span("1", {"gen_ai.operation.name": "invoke_agent", **TOOLS})
    (run,), _ = read(tmp_path, traces(agent, cycle, span("3", CHAT, parent="2", events=inside)))
    assert len(run.calls) == 1
    assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)
    assert run.demonstrations()[0].tools == [WEATHER]


def events(**more: Any) -> list[tuple[str, dict[str, Any]]]:
    """Events until version 1.36 of the conventions: names and bodies."""
    return [
        ("gen_ai.system.message", {"content": ASKED[0]["content"]}),
        ("gen_ai.user.message", {"content": ASKED[1]["content"]}),
        ("gen_ai.assistant.message", {"tool_calls": CALLS["tool_calls"]}),
        ("gen_ai.tool.message", {"content": RAIN["content"], "id": "call_1"}),
        ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": {"content": ANSWER["content"], **more}}),
    ]


def test_older_events_as_log_records(tmp_path: Path) -> None:
    records = [log(name, body, span="1") for name, body in events(role="assistant")]
    by_attribute = [
        {**record, "eventName": "", "attributes": attributes({"event.name": record["eventName"]})} for record in records
    ]
    for lines in ([logs(*records), traces(span("1", CHAT))], [traces(span("1", CHAT)), *map(logs, by_attribute)]):
        (run,), left_out = read(tmp_path, *lines)
        assert (left_out, run.calls[0].model) == ([], "gpt-4o-2024")
        (demonstration,) = run.demonstrations()
        assert essence(demonstration.messages) == essence(CONVERSATION)
        assert demonstration.answers("all") == [4], (
            "the call of the tool was sampled by another span, which is not there"
        )


def test_log_records_without_their_spans(tmp_path: Path) -> None:
    records = [log(name, body, span="1") for name, body in events()]
    (run,), _ = read(tmp_path, logs(*records, log("other", "x", span="1", trace="")))
    assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)


def test_older_events_of_spans(tmp_path: Path) -> None:
    inside = [
        {"name": name, "timeUnixNano": str(at), "attributes": attributes({"gen_ai.event.content": json.dumps(body)})}
        for at, (name, body) in enumerate(events())
    ]
    (run,), _ = read(tmp_path, traces(span("1", CHAT, events=inside)))
    assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)
    first = [
        {"name": f"gen_ai.content.{kind}", "attributes": attributes({f"gen_ai.{kind}": json.dumps(said)})}
        for kind, said in (("prompt", ASKED), ("completion", [ANSWER]))
    ]
    (run,), _ = read(tmp_path, traces(span("1", CHAT, events=first)))
    assert essence(run.demonstrations()[0].messages) == essence([*ASKED, ANSWER])


def test_messages_in_attributes_of_their_own(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "gen_ai.request.model": "m",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": ANSWER["content"],
    }
    for at, message in enumerate(CONVERSATION[:4]):
        values[f"gen_ai.prompt.{at}.role"] = message["role"]
        if message["content"]:
            values[f"gen_ai.prompt.{at}.content"] = message["content"]
        if call := (message.get("tool_calls") or [None])[0]:
            values |= {f"gen_ai.prompt.{at}.tool_calls.0.{key}": value for key, value in call["function"].items()}
    for key, value in WEATHER["function"].items():
        values[f"llm.request.functions.0.{key}"] = value if isinstance(value, str) else json.dumps(value)
    (run,), _ = read(tmp_path, traces(span("1", values)))
    assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)
    assert run.calls[0].tools == [WEATHER]


def test_spans_of_the_console_exporter(tmp_path: Path) -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    provider = trace.TracerProvider()
    tracer = provider.get_tracer("t")
    values = {**CHAT, "gen_ai.input.messages": json.dumps(PARTS), "gen_ai.output.messages": json.dumps(SAID)}
    with tracer.start_as_current_span("agent"), tracer.start_as_current_span("chat", attributes=values) as inner:
        pass
    (run,), left_out = read(tmp_path, inner.to_json(indent=None))
    assert left_out == []
    assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)


def test_a_failed_call(tmp_path: Path) -> None:
    values = {**CHAT, "gen_ai.input.messages": json.dumps(PARTS[:2])}
    (run,), _ = read(tmp_path, traces(span("1", values, status={"code": 2, "message": "timeout"})))
    assert (run.error, run.calls[0].error, run.demonstrations()) == ("timeout", "timeout", [])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (traces(span("1", CHAT)), "traces whose spans have no messages (1: line 1); switch the capture of content on"),
        ({"resourceMetrics": []}, "metrics, which say nothing of single runs"),
        ({"spans": []}, "records without spans and without log records"),
        ([3], "records that are none of otel"),
    ],
)
def test_what_is_left_out_is_named(tmp_path: Path, line: Any, why: str) -> None:
    runs, left_out = read(tmp_path, line if isinstance(line, dict) else json.dumps([line]))
    assert not runs
    assert left_out[0].startswith(why)


def test_import_counts(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    older = [log(name, body, span="1", trace="b" * 32) for name, body in events()]
    forms = {
        "messages on spans": [traces(*attribute_spans(json.dumps))],
        "older events": [logs(*older), traces(span("1", CHAT, trace="b" * 32))],
    }
    for what, records in forms.items():
        (tmp_path / what).mkdir()
        numbers, row = counted("otel", what, tmp_path / what, *records, {"resourceMetrics": []})
        assert numbers == (1, 1, 1, 0)
        record_property(COUNTS, row)


def flat(prefix: str, value: Any) -> dict[str, Any]:
    """Attributes of which each is a part of a value."""
    if isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {name: part for key, inner in pairs for name, part in flat(f"{prefix}.{key}", inner).items()}
    return {prefix: value}


def inference(message: dict[str, Any]) -> dict[str, Any]:
    """A message in OpenInference's form."""
    calls = [{"tool_call": {key: call[key] for key in ("id", "function")}} for call in message.get("tool_calls", ())]
    kept = {key: message[key] for key in ("role", "content", "tool_call_id") if message.get(key) is not None}
    return {"message": {**kept, **({"tool_calls": calls} if calls else {})}}


def inference_span(id: str, asked: list[Any], said: dict[str, Any], **more: Any) -> Any:
    values = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt-4o",
        "metadata": json.dumps({"langgraph_node": "model"}),
        "input.value": json.dumps({"messages": asked}),
        **flat("llm.input_messages", list(map(inference, asked))),
        **flat("llm.output_messages", [inference(said)]),
        **flat("llm.tools", [{"tool": {"json_schema": json.dumps(WEATHER)}}]),
    }
    return span(id, values, parent="1", **more)


def test_messages_of_openinference(tmp_path: Path) -> None:
    state = {"messages": [["user", "Weather in Oslo?"]]}
    chain = {"openinference.span.kind": "CHAIN", "input.value": json.dumps(state), "output.value": "done"}
    chain |= flat("llm.input_messages", [inference(ASKED[1])])  # of a node: it is no call of a model
    used = {"openinference.span.kind": "TOOL", "tool.name": "weather", "input.value": '{"city": "Oslo"}'}
    used["output.value"] = json.dumps({"type": "tool", "data": {**RAIN, "type": "tool"}})
    (run,), left_out = read(
        tmp_path,
        traces(
            span("1", {**chain, "session.id": "th-1"}, name="LangGraph"),
            inference_span("2", ASKED, CALLS, at=1),
            span("3", used, parent="1", at=2),
            inference_span("4", CONVERSATION[:4], ANSWER, at=3),
        ),
    )
    assert left_out == []
    (demonstration,) = run.demonstrations()
    assert demonstration.messages == [*ASKED, CALLS, RAIN, ANSWER], "with the ids of calls"
    assert (demonstration.tools, demonstration.answers("all")) == ([WEATHER], [2, 4])
    assert [(call.model, call.node) for call in run.calls] == [("gpt-4o", "model")] * 2
    assert [(call.tool, call.arguments, call.result) for call in run.tool_calls] == [
        ("weather", {"city": "Oslo"}, RAIN["content"])
    ]
    assert (run.input, run.thread_id) == ({"messages": ASKED[1:]}, "th-1")


def test_contents_of_openinference(tmp_path: Path) -> None:
    parts = [
        {"message_content": {"type": "text", "text": "Weather in "}},
        {"message_content": {"type": "text", "text": "Oslo?"}},
    ]
    values = flat("llm.input_messages", [{"message": {"role": "user", "contents": parts}}])
    (run,), _ = read(tmp_path, traces(span("1", {**values, **flat("llm.output_messages", [inference(ANSWER)])})))
    assert run.calls[0].messages == ASKED[1:]


def langchain(kind: str, **fields: Any) -> dict[str, Any]:
    """A message as LangChain dumps it."""
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": fields}


def test_spans_of_langsmiths_exporter(tmp_path: Path) -> None:
    asked = [langchain("SystemMessage", content="Use tools."), langchain("HumanMessage", content="Weather in Oslo?")]
    calls = langchain(
        "AIMessage", content="", tool_calls=[{"name": "weather", "args": {"city": "Oslo"}, "id": "call_1"}]
    )
    rain = langchain("ToolMessage", content=RAIN["content"], tool_call_id="call_1")

    def called(id: str, given: list[Any], said: dict[str, Any], at: int) -> Any:
        values = {
            "langsmith.span.kind": "llm",
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "gpt-4o",
            "gen_ai.prompt": json.dumps({"messages": [given]}),
            "gen_ai.completion": json.dumps({"generations": [[{"text": "", "message": said}]]}),
            "langsmith.metadata.langgraph_node": "model",
            **TOOLS,
        }
        return span(id, values, parent="1", at=at)

    state = {"messages": [{"type": "human", "content": "Weather in Oslo?"}]}
    graph = {"langsmith.span.kind": "chain", "gen_ai.operation.name": "chain", "gen_ai.prompt": json.dumps(state)}
    used = {
        "langsmith.span.kind": "tool",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.call.id": "call_1",
        "gen_ai.prompt": '{"city": "Oslo"}',
        "gen_ai.completion": json.dumps(
            {"output": {"type": "tool", **{key: RAIN[key] for key in ("content", "tool_call_id")}}}
        ),
    }
    answer = langchain("AIMessage", content=ANSWER["content"])
    spans = [span("1", graph), called("2", asked, calls, 1), span("3", used, parent="1", at=2)]
    (run,), left_out = read(tmp_path, traces(*spans, called("4", [*asked, calls, rain], answer, 3)))
    assert left_out == []
    (demonstration,) = run.demonstrations()
    assert essence(demonstration.messages) == essence(CONVERSATION)
    assert (demonstration.tools, demonstration.answers("all")) == ([WEATHER], [2, 4])
    assert run.input == {"messages": ASKED[1:]}
    assert [(call.tool, call.arguments, call.result, call.tool_call_id) for call in run.tool_calls] == [
        ("weather", {"city": "Oslo"}, RAIN["content"], "call_1")
    ]


def test_events_in_an_attribute(tmp_path: Path) -> None:
    listed = [{"event.name": name, **body} for name, body in events(role="assistant")]
    for written in (json.dumps(listed), listed):
        (run,), left_out = read(tmp_path, traces(span("1", {**CHAT, **TOOLS, "events": written})))
        assert left_out == []
        assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The content of a message in the form of Amazon Bedrock."""
    if message["role"] == "tool":
        return [{"toolResult": {"toolUseId": "call_1", "status": "success", "content": [{"text": message["content"]}]}}]
    uses = [{"toolUse": {"toolUseId": "call_1", "name": "weather", "input": {"city": "Oslo"}}}]
    return uses if message.get("tool_calls") else [{"text": message["content"]}]


@pytest.mark.parametrize("form", ["log records in CloudWatch", "events of spans"])
def test_agents_of_aws(tmp_path: Path, form: str) -> None:
    facts = {"traceId": "a" * 32, "spanId": "1" * 16}
    seen = {**facts, "parentSpanId": None, "name": "chat", "startTimeUnixNano": 10**18, "endTimeUnixNano": 10**18,
            "attributes": {**CHAT, **TOOLS}, "status": {"code": "UNSET"}}  # fmt: skip
    texts = [
        ("user" if message["role"] == "tool" else message["role"], json.dumps(blocks(message)))
        for message in CONVERSATION
    ]
    if form == "events of spans":
        names = ["gen_ai.system.message", "gen_ai.user.message", "gen_ai.assistant.message", "gen_ai.tool.message"]
        inside = [
            {"name": name, "timeUnixNano": str(at), "attributes": attributes({"content": text, "id": "call_1"})}
            for at, (name, (_, text)) in enumerate(zip(names, texts, strict=False))
        ]
        said = attributes({"message": texts[4][1], "finish_reason": "end_turn"})
        inside.append({"name": "gen_ai.choice", "timeUnixNano": "9", "attributes": said})
        lines = [traces(span("1", {**CHAT, **TOOLS}, events=inside))]
    else:
        given = [{"role": role, "content": {"content": text}} for role, text in texts[:4]]
        answered = [{"role": "assistant", "content": {"message": texts[4][1], "finish_reason": "end_turn"}}]
        body = {"input": {"messages": given}, "output": {"messages": answered}}
        event = {"event.name": "strands.telemetry.tracer"}
        lines = [seen, {**facts, "timeUnixNano": 10**18, "body": body, "attributes": event}]
    (run,), left_out = read(tmp_path, *lines)
    assert left_out == []
    (demonstration,) = run.demonstrations()
    assert essence(demonstration.messages) == essence(CONVERSATION)
    assert demonstration.tools == [WEATHER]


def test_an_unknown_form_is_named_by_its_attributes(tmp_path: Path) -> None:
    values = {**CHAT, "ai.prompt.messages": "[]", "acme.3.said": "x", "acme.4.said": "y", "http.url": "z"}
    event = {"name": "acme.event", "timeUnixNano": "1", "attributes": []}
    runs, (left_out,) = read(tmp_path, traces(span("1", values, events=[event])))
    assert not runs
    found = "found were acme.N.said, acme.event, ai.prompt.messages, and none of them is known to have messages"
    assert left_out.startswith(f"traces whose spans have no messages (1: line 1); {found}")


def test_no_role_is_guessed(tmp_path: Path) -> None:
    last = flat("gen_ai.completion", [ANSWER])
    named = [*ASKED, CALLS, {key: RAIN[key] for key in ("content", "tool_call_id")}]

    def fields(messages: list[Any]) -> dict[str, Any]:
        calls = [{**CALL, **CALL["function"]} for CALL in CALLS["tool_calls"]]
        listed = [{**m, "tool_calls": calls} if m.get("tool_calls") else m for m in messages]
        return {k: v for k, v in flat("gen_ai.prompt", listed).items() if v is not None}

    (run,), left_out = read(tmp_path, traces(span("1", {**fields(named), **last})))
    assert left_out == []
    assert run.calls[0].messages[3] == RAIN
    nameless = {**fields([ASKED[0], {"content": "Weather in Oslo?"}]), **last}
    parts = {"gen_ai.input.messages": json.dumps([{"parts": [{"type": "text", "content": "Hi"}]}])}
    inferred = flat("llm.input_messages", [{"message": {"content": "Hi"}}])
    for values in (nameless, {**CHAT, **parts}, inferred):
        runs, (left_out,) = read(tmp_path, traces(span("1", values)))
        assert not runs
        assert left_out.startswith("with messages that have no role (1: line 1)")


def test_calls_without_definitions_of_their_tools_are_counted(tmp_path: Path) -> None:
    values = {**CHAT, "gen_ai.input.messages": json.dumps(PARTS), "gen_ai.output.messages": json.dumps(SAID)}
    file = write(
        tmp_path / "x.jsonl", traces(span("1", values)), traces(span("1", {**values, **TOOLS}, trace="b" * 32))
    )
    found = import_runs("otel", file, demonstrations=tmp_path / "d.jsonl")
    assert found.demonstrations.new == 2
    assert found.gaps.counts == {
        "runs that call tools without their definitions, which their demonstrations lack too": 1
    }


def test_a_trace_that_bedrock_returns_is_left_out(tmp_path: Path) -> None:
    text = {"text": '{"messages":[{"content":"[{text=Hi}]","role":"user"}]}'}
    part = {"agentId": "a", "agentAliasId": "b", "sessionId": "s",
            "trace": {"orchestrationTrace": {"modelInvocationInput": text}}}  # fmt: skip
    runs, (left_out,) = read(tmp_path, part)
    assert not runs
    assert left_out.startswith("traces that Amazon Bedrock's agents return, in which messages are texts of objects (1")
