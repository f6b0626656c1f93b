"""`art-langgraph quickstart` from the command line: interrupted, resumed, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from art_examples.quickstart.quickstart import LEARNING_RATE
from art_examples.quickstart.reward import success

from art_langgraph import Evaluation
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.vllm

COMMAND = str(Path(sys.executable).with_name("art-langgraph"))


def quickstart(where: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.Popen(
        [COMMAND, "quickstart", "--steps", "2", "--held-out", "12", *arguments],
        cwd=where, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_ctrl_c_leaves_no_process_and_resume_goes_on(tmp_path: Path) -> None:
    first = quickstart(tmp_path, "--seed", "3")
    metrics = None
    deadline = time.monotonic() + 900
    while not (metrics := next(tmp_path.glob("runs/*/metrics.jsonl"), None)):
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    started = psutil.Process(first.pid).children(recursive=True)
    assert any("vllm" in " ".join(process.cmdline()) for process in started)
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode == 130, output
    assert "--resume" in output
    _, alive = psutil.wait_procs(started, timeout=PATIENCE)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert not (tmp_path / "runs" / "latest" / "summary.json").exists()

    second = quickstart(tmp_path, "--resume")
    output, _ = second.communicate(timeout=900)
    assert second.returncode == 0, output
    latest = tmp_path / "runs" / "latest"
    assert latest.resolve() == metrics.parent.resolve()
    summary = json.loads((latest / "summary.json").read_text())
    assert (summary["seed"], summary["steps"]) == (3, 2)
    assert summary["before"]["n"] == summary["after"]["n"] == 12
    assert set(summary["seconds"]) == {"ready", "rollout", "train", "swap_median", "total"}
    spent = json.loads((latest / "budget.json").read_text())
    assert spent["seconds"]["start of vLLM and trainer"] == pytest.approx(summary["seconds"]["ready"], abs=0.001)
    assert spent["seconds"]["trainer: forward"] > 0
    assert spent["rollouts"]["requests"]["decode"] > 0
    assert set(spent["rollouts"]["processors"]) >= {"engine", "gateway", "client", "MCP server"}
    assert spent["peak_memory"]["trainer"] > 0
    rows = [json.loads(line) for line in (latest / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["version"]) for row in rows] == [(1, 1), (2, 2)]
    for row in rows:
        metrics = row["metrics"]
        assert metrics["tokens_trained"] > 0
        assert metrics["grad_norm"] > 0
        assert metrics["logp_gap"] < 0.1, "the engine samples from other weights than the trainer trains"
    assert [row["metrics"]["lr"] for row in rows] == [LEARNING_RATE, LEARNING_RATE / 2]
    for version, when in ((0, "before"), (2, "after")):
        measured = Evaluation.load(latest / f"held_out@{version}.jsonl", version=version, success=success)
        assert measured.success_rate == summary[when]["success"]
        answered = {call.version for run in measured.trajectories for call in run.completions}
        assert answered == {version}, f"{when}: other versions answered"
    for name in ("curve.png", "curve.svg", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"):
        assert (latest / name).stat().st_size > 0
    for words in ("held-out success before training", "95 % interval", "before:", "after:"):
        assert words in output


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    process = quickstart(tmp_path, "--resume")
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "nothing to resume" in output
    assert "Traceback" not in output
