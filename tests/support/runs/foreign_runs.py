"""Exports of other systems, in the shapes that their SDKs, their documentation and their file exporters define."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from art_langgraph import TrajectoryStore
from art_langgraph.traces import import_runs

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Weather in Oslo?"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RAIN = {"role": "tool", "tool_call_id": "call_1", "content": "rain, 7 degrees"}
ANSWER = {"role": "assistant", "content": "It rains in Oslo."}
CONVERSATION = [*ASKED, CALLS, RAIN, ANSWER]


def write(path: Path, *records: Any) -> Path:
    """JSON Lines; gzipped where the name says so. A text is a line as it is."""
    lines = "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path


def otlp(value: Any) -> dict[str, Any]:
    """A value as OTLP's JSON has it."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [otlp(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": attributes(value)}}
    return {"stringValue": value}


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": otlp(value)} for key, value in values.items()]


def span(id: str, values: dict[str, Any], *, parent: str = "", at: int = 0, trace: str = "a" * 32, **more: Any) -> Any:
    """A span that begins `at` seconds after the others and takes one."""
    start = 1_700_000_000 + at
    return {
        "traceId": trace,
        "spanId": id * 16,
        "parentSpanId": parent * 16,
        "name": more.pop("name", "chat m"),
        "kind": 3,
        "startTimeUnixNano": str(start * 10**9),
        "endTimeUnixNano": str((start + 1) * 10**9),
        "attributes": attributes(values),
        "status": {},
        **more,
    }


def traces(*spans: Any) -> dict[str, Any]:
    """A line of a file of traces."""
    scope = {"scope": {"name": "instrumentation"}, "spans": list(spans)}
    return {
        "resourceSpans": [{"resource": {"attributes": attributes({"service.name": "agent"})}, "scopeSpans": [scope]}]
    }


def log(name: str, body: Any, *, span: str, at: int = 0, trace: str = "a" * 32, **values: Any) -> Any:
    """A log record that is an event of a span."""
    return {
        "timeUnixNano": str((1_700_000_000 + at) * 10**9),
        "eventName": name,
        "body": otlp(body),
        "attributes": attributes(values),
        "traceId": trace,
        "spanId": span * 16,
    }


def logs(*records: Any) -> dict[str, Any]:
    """A line of a file of logs."""
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": list(records)}]}]}


def essence(messages: Iterable[dict[str, Any]]) -> list[Any]:
    """What a conversation says, without ids of calls and empty fields."""
    found = []
    for message in messages:
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        found.append((message["role"], message.get("content") or "", calls))
    return found


COUNTS = (
    "| export | runs | scenarios | demonstrations | rewards | left out | a second time |\n|---|---|---|---|---|---|---|"
)
"""Header of the table of counts, which a test run prints at its end."""


def counted(system: str, what: str, path: Path, *records: Any) -> tuple[tuple[int, ...], str]:
    """Imports records twice.

    Returns:
        How many runs, scenarios, demonstrations and rewards the first import made, and a row of the table.
    """
    file = write(path / "export.jsonl.gz", *records)
    places: dict[str, Any] = {name: path / f"{name}.jsonl" for name in ("scenarios", "demonstrations")}
    places["store"] = TrajectoryStore(path / "store.sqlite")
    first, again = (import_runs(system, file, **places) for _ in range(2))
    numbers = tuple(tally.new for tally in (first.runs, first.scenarios, first.demonstrations, first.rewards))
    left_out = "; ".join(f"{count} {why}" for why, count in first.skips.counts.items()) or "-"
    cells = [f"{system}: {what}", *map(str, numbers), left_out, f"{again.runs.new} new, {again.runs.known_count} known"]
    return numbers, f"| {' | '.join(cells)} |"
