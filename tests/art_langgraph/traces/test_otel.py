"""OpenTelemetry: every place where the GenAI conventions have put messages. Real exporters: test_real_exporters.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    assert (run.id, run.name, run.started, run.seconds) == ("a" * 32, "forecaster", 1_700_000_000, 4.0)
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
