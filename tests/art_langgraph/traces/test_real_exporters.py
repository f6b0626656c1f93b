"""What libraries of other systems write: types of Langfuse's SDK, OpenTelemetry's instrumentation and file exporter.

They live in an environment of their own. The instrumented client asks the real gateway.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from art_langgraph import TrajectoryStore
from art_langgraph.traces import import_runs, read_runs
from testbed.environments import environment
from tests.support.servers.trainer_server import TOKEN, TrainerServer

PACKAGES = (
    "langfuse==5.0.4",
    "opentelemetry-exporter-otlp-json-file==0.66b1",
    "opentelemetry-instrumentation-openai-v2==2.4b0",
    "opentelemetry-util-genai==0.4b0",
)
pytestmark = pytest.mark.servers

LANGFUSE = """
import datetime as dt, sys
from langfuse.api import ObservationV2, NumericScoreV3
from langfuse.api.scores.types.score_subject_v3 import ScoreSubjectV3_Observation, ScoreSubjectV3_Trace
at = dt.datetime(2026, 3, 1, 12, tzinfo=dt.timezone.utc)
asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Oslo?"}]
said = {"role": "assistant", "content": "Rain."}
def seen(id, type, given, got, **more):
    return ObservationV2(id=id, trace_id="t1", start_time=at, end_time=at, project_id="p", type=type, input=given,
                         output=got, **more)
facts = dict(project_id="p", source="ANNOTATION", timestamp=at, environment="default", created_at=at, updated_at=at)
records = [
    seen("o1", "AGENT", {"question": "Weather in Oslo?"}, "Rain."),
    seen("o2", "GENERATION", asked, said, parent_observation_id="o1", provided_model_name="gpt-4o"),
    NumericScoreV3(id="s1", name="helpful", value=0.75, subject=ScoreSubjectV3_Trace(id="t1"), **facts),
    NumericScoreV3(id="s2", name="tone", value=1, subject=ScoreSubjectV3_Observation(id="o2", trace_id="t1"), **facts),
]
with open(sys.argv[1], "w") as file:
    for record in records:
        file.write(record.model_dump_json() + "\\n")
"""

OTEL = """
import sys
from openai import OpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.json.file._log_exporter import FileLogExporter
from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
spans, logs, url, key = sys.argv[1:]
tracing, logging = TracerProvider(), LoggerProvider()
tracing.add_span_processor(SimpleSpanProcessor(FileSpanExporter(spans)))
logging.add_log_record_processor(SimpleLogRecordProcessor(FileLogExporter(logs)))
OpenAIInstrumentor().instrument(tracer_provider=tracing, logger_provider=logging)
client = OpenAI(base_url=url, api_key=key)
tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
messages = [{"role": "user", "content": "say hello"}]
with tracing.get_tracer("agent").start_as_current_span("invoke_agent forecaster") as span:
    span.set_attribute("gen_ai.operation.name", "invoke_agent")
    for _ in range(2):
        answer = client.chat.completions.create(model="agent", messages=messages, tools=tools, max_tokens=9)
        said = answer.choices[0].message.content
        print(said)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "say more"}]
tracing.shutdown(), logging.shutdown()
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return environment("foreign-systems", *PACKAGES, overlay=True) / "python"


def run(python: Path, script: str, *words: str, **variables: str) -> str:
    done = subprocess.run(
        [str(python), "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_langfuses_sdk_has_read(python: Path, tmp_path: Path) -> None:
    run(python, LANGFUSE, str(tmp_path / "page.jsonl"))
    (found,) = read_runs("langfuse", tmp_path / "page.jsonl")
    assert found.metrics == {"helpful": 0.75, "tone": 1.0}
    assert found.input == {"question": "Weather in Oslo?"}
    (conversation,) = found.demonstrations()
    assert [message["content"] for message in conversation.messages] == ["Be brief.", "Weather in Oslo?", "Rain."]


@pytest.mark.parametrize(
    "capture",
    [
        {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"},
        {
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
        },
    ],
    ids=["events", "attributes"],
)
def test_what_an_instrumented_client_and_the_file_exporter_write(
    python: Path, server: TrainerServer, tmp_path: Path, capture: dict[str, str]
) -> None:
    files = [tmp_path / "spans.jsonl", tmp_path / "logs.jsonl"]
    said = run(python, OTEL, *map(str, files), f"{server.url}/v1", TOKEN, **capture).splitlines()
    (found,) = read_runs("otel", *(file for file in files if file.exists()))
    assert [(call.answer or {}).get("content") for call in found.calls] == said
    (conversation,) = found.demonstrations()
    assert [message["content"] for message in conversation.messages] == ["say hello", said[0], "say more", said[1]]
    counted = import_runs(
        "otel",
        *(file for file in files if file.exists()),
        store=TrajectoryStore(tmp_path / "store.sqlite"),
        scenarios=tmp_path / "scenarios.jsonl",
        demonstrations=tmp_path / "demonstrations.jsonl",
    )
    assert (counted.runs.new, counted.scenarios.new, counted.demonstrations.new) == (1, 1, 1)
