"""Trackers with the real libraries, in their offline modes. The libraries live in an environment of their own.

Each test tracks two steps, and a third one when the training goes on; then the library reads what it has written.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from art_langgraph.trackers.spans import spans
from testbed.environments import environment
from tests.support.client_environments import ROOT
from tests.support.runs.trackers import a_run
from tests.support.tracing.recording_server import recording

PACKAGES = ("wandb==0.31.0", "tensorboard==2.21.0", "mlflow==3.17.2", "trackio==0.43.0", "langfuse==5.0.4")
pytestmark = pytest.mark.servers

STEPS = [[1, 0.25], [2, 0.5], [3, 0.75]]

WANDB = """
import glob, json, os, struct
from wandb.proto import wandb_internal_pb2
BLOCK = 32768  # a file is a log of LevelDB with a header of 7 bytes: blocks of parts, each with sum, size and type

def records(data):
    at, record = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""

found = {"steps": [], "runs": []}
for path in sorted(glob.glob("wandb/offline-run-*/*.wandb"), key=os.path.getmtime):  # names tell seconds alone
    for data in records(open(path, "rb").read()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            settings = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            found["runs"].append([record.run.run_id, record.run.display_name, record.run.run_group, settings])
        if record.HasField("history"):
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            found["steps"].append([row["step"], row["reward"], row["metrics/gap"]])
print(json.dumps(found))
"""

TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1] + "/tensorboard/agent-1")
events.Reload()
print(json.dumps({
    "steps": [[event.step, event.value] for event in events.Scalars("reward")],
    "tags": events.Tags()["scalars"],
    "config": events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode(),
}))
"""

MLFLOW = """
import json
from mlflow.tracking import MlflowClient
client = MlflowClient()
runs = client.search_runs([client.get_experiment_by_name("art-langgraph").experiment_id])
(run,) = runs
print(json.dumps({
    "steps": [[one.step, one.value] for one in client.get_metric_history(run.info.run_id, "reward")],
    "name": run.info.run_name, "status": run.info.status, "params": run.data.params, "metrics": run.data.metrics,
}))
"""

TRACKIO = """
import json
from trackio.sqlite_storage import SQLiteStorage
(name,) = SQLiteStorage.get_runs("art-langgraph")
rows = SQLiteStorage.get_logs("art-langgraph", name)
print(json.dumps({
    "steps": [[row["step"], row["reward"]] for row in rows], "name": name, "gaps": [row["metrics/gap"] for row in rows],
}))
"""

SPANS = """
import json, sys
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
found = []
for path in sys.argv[1:]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(open(path, "rb").read())
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                values = {one.key: MessageToDict(one.value) for one in span.attributes}
                found.append({
                    "trace": span.trace_id.hex(), "parent": span.parent_span_id.hex(), "id": span.span_id.hex(),
                    "name": span.name, "start": span.start_time_unix_nano, "end": span.end_time_unix_nano,
                    "values": {key: next(iter(value.values()), None) for key, value in values.items()},
                })
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return environment("trackers", *PACKAGES, overlay=True) / "python"


def run(python: Path, where: Path, *words: str, **variables: str) -> Any:
    """The last line of a program's output, as JSON."""
    done = subprocess.run(
        [str(python), *words],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(where), **variables},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def track(python: Path, where: Path, name: str, **variables: str) -> None:
    said, lost = run(python, where, "-m", "tests.support.runs.track_steps", name, str(where), **variables)
    assert (said, lost) == ([], {name: 0})


def test_wandb_keeps_a_training_that_goes_on(python: Path, tmp_path: Path) -> None:
    variables = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_API_KEY": "x" * 40}
    track(python, tmp_path, "wandb", **variables)
    found = run(python, tmp_path, "-c", WANDB)
    assert found["steps"] == [[step, reward, -step] for step, reward in STEPS]
    assert {(id, name, group) for id, name, group, _ in found["runs"]} == {("agent-1", "first", "agent")}
    settings = found["runs"][0][3]
    assert (settings["policy"], settings["n"], settings["grpo"]["lr"]) == ("agent", 8, 0.001)


def test_tensorboard_keeps_a_training_that_goes_on(python: Path, tmp_path: Path) -> None:
    track(python, tmp_path, "tensorboard")
    found = run(python, tmp_path, "-c", TENSORBOARD, str(tmp_path))
    assert found["steps"] == STEPS
    assert set(found["tags"]) == {"reward", "metrics/gap"}
    assert json.loads(found["config"])["grpo"] == {"lr": 0.001, "nodes": None}


@pytest.mark.parametrize("store", ["sqlite"])
def test_mlflow_keeps_a_training_that_goes_on(python: Path, tmp_path: Path, store: str) -> None:
    variables = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    track(python, tmp_path, "mlflow", **variables)
    found = run(python, tmp_path, "-c", MLFLOW, **variables)
    assert found["steps"] == STEPS
    assert (found["name"], found["status"]) == ("first", "FINISHED")
    assert found["params"] == {"n": "8", "grpo/lr": "0.001", "grpo/nodes": "null"}
    assert found["metrics"] == {"reward": 0.75, "metrics/gap": -3.0}


def test_trackio_keeps_a_training_that_goes_on(python: Path, tmp_path: Path) -> None:
    variables = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    track(python, tmp_path, "trackio", **variables)
    found = run(python, tmp_path, "-c", TRACKIO, **variables)
    assert found["steps"] == STEPS
    assert found["name"] == "first (agent-1)"
    assert found["gaps"] == [-1.0, -2.0, -3.0]


def test_langfuse_gets_runs_as_traces_with_scores(python: Path, tmp_path: Path) -> None:
    project = {"id": "p", "name": "p", "organization": {"id": "o", "name": "o"}, "metadata": {}}
    with recording({"/api/public/projects": {"data": [project]}}) as server:
        keys = {"LANGFUSE_PUBLIC_KEY": "pk-1", "LANGFUSE_SECRET_KEY": "sk-1", "LANGFUSE_BASE_URL": server.url}
        track(python, tmp_path, "langfuse", **keys)
        exports = []
        for number, sent in enumerate(server.to("/api/public/otel/v1/traces")):
            file = tmp_path / f"{number}.bin"
            zipped = sent.headers.get("content-encoding") == "gzip"
            file.write_bytes(gzip.decompress(sent.body) if zipped else sent.body)
            exports.append(str(file))
        given = [json.loads(sent.body) for sent in server.to("/api/public/scores")]
    found = run(python, tmp_path, "-c", SPANS, *exports)
    tree = spans(a_run())
    assert len(found) == 3 * len(tree), "the same run three times"
    assert {span["trace"] for span in found} == {tree[0].id.hex}
    by_id = {span["id"]: span for span in found}
    assert len(by_id) == len(tree), "it is there once"
    parents = {span["name"]: by_id[span["parent"]]["name"] if span["parent"] else None for span in found}
    expected = {"agent": "forecaster", "model": "agent", "agent@2": "model", "judge": "forecaster", "weather": "agent"}
    assert parents == {"forecaster": None, **expected}
    by_name = {span["name"]: span for span in found}
    kinds = {name: span["values"]["langfuse.observation.type"] for name, span in by_name.items()}
    assert (kinds["forecaster"], kinds["agent"], kinds["agent@2"], kinds["weather"]) == (
        "agent", "chain", "generation", "tool",
    )  # fmt: skip
    said = by_name["agent@2"]
    assert (said["start"], said["end"]) == (101_100_000_000, 101_600_000_000)
    assert json.loads(said["values"]["langfuse.observation.output"])["content"] == "Rain."
    assert said["values"]["session.id"] == "first (agent-1)"
    assert by_name["weather"]["values"]["langfuse.observation.status_message"] == "no such city"
    scores = [{(one["name"], one["value"], one["traceId"]) for one in batch} for batch in given]
    assert scores == [{("reward", 0.5, tree[0].id.hex), ("short", 1.0, tree[0].id.hex)}] * 3
    assert len({one["id"] for batch in given for one in batch}) == 2


def test_langfuse_that_refuses_is_said(python: Path, tmp_path: Path) -> None:
    with recording() as server:
        server.status = 401
        keys = {"LANGFUSE_PUBLIC_KEY": "pk-1", "LANGFUSE_SECRET_KEY": "sk-1", "LANGFUSE_BASE_URL": server.url}
        said, _ = run(python, tmp_path, "-m", "tests.support.runs.track_steps", "langfuse", str(tmp_path), **keys)
    assert "the tracker 'langfuse' failed" in said[0]
    assert "Check LANGFUSE_PUBLIC_KEY" in said[0]
