"""Traces: when they are on, and what they cost while they are off."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainer_server.common import tracing
from trainer_server.wire import ConfigError

OFF = """
import sys
from trainer_server.common import tracing
assert not tracing.on()
with tracing.span("a", {"b": 1}) as span:
    assert span is tracing.NOTHING and tracing.headers() == {} and span.parent is None
    span.set({}); span.fail("x"); span.event("e", {}); span.end()
with tracing.within(tracing.begin("b")):
    pass
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from trainer_server.common import tracing
print(tracing.on())
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "ART_OTEL"))}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**known, **environment}
    )


def test_nothing_is_imported_while_they_are_off() -> None:
    assert run(OFF).stdout == "[]\n"


def test_without_the_extra_whoever_asks_for_them_is_told_how_to_get_it() -> None:
    asked = run(WITHOUT, ART_OTEL="1")
    assert "pip install 'art-langgraph[otel]'" in asked.stderr
    assert asked.returncode == 1
    by_others = run(WITHOUT, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert by_others.stdout == "False\n"
    assert "traces are asked for, and OpenTelemetry is not installed" in by_others.stderr


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"ART_OTEL": "1"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "ART_OTEL": "0"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_SERVICE_NAME": "mine"}, False),
    ],
)
def test_the_environment_turns_them_on(environment: dict[str, str], wanted: bool) -> None:
    assert tracing.wanted(environment) is wanted


def test_a_switch_that_says_neither_is_an_error() -> None:
    with pytest.raises(ConfigError, match="ART_OTEL=yes: give 1 to turn traces on, or 0"):
        tracing.wanted({"ART_OTEL": "yes"})
