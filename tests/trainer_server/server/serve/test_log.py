"""`serve` as a process: its log as JSON in a file, and its spans at a collector."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.servers.processes import processes
from tests.support.tracing.otlp import collecting


@pytest.mark.slow
def test_a_server_logs_json_to_a_file_and_sends_its_spans(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "logs" / "server.log"
    given = f"00-{'ab' * 16}-{'cd' * 8}-01"
    with collecting() as collector, processes(tmp_path / "home", base_model) as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        running.start("--log-format", "json", "--log-file", str(file), "--log-requests")
        token = running.home.token.read_text().strip()
        with running.http() as http:
            http.headers.update({"traceparent": given, "X-Request-Id": "mine-1"})
            body = {"model": base_model.name, "messages": [{"role": "user", "content": "say x"}], "max_tokens": 9}
            answer = http.post("/rollouts/ro-1/v1/chat/completions", json=body)
            assert (answer.status_code, answer.headers["X-Request-Id"]) == (200, "mine-1")
        assert running.server is not None
        running.server.terminate()
        running.server.wait(PATIENCE)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert any(line["message"].startswith("serving on http://127.0.0.1:") for line in lines)
    (asked,) = (line for line in lines if line.get("request_id") == "mine-1")
    assert (asked["rollout_id"], asked["method"], asked["status"]) == ("ro-1", "POST", 200)
    assert token not in file.read_text()
    assert {span.trace for span in collector.spans} == {"ab" * 16}
    assert {span.service for span in collector.spans} == {"art-langgraph-server"}
    (engine,) = collector.named("engine")
    assert collector.above(engine) == ["POST /v1/chat/completions", f"chat {base_model.name}"]
