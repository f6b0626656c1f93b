"""A specialization that is killed with SIGKILL at every stage goes on where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from art_langgraph import TrainerClient
from tests.support.killed.specialization import POLICY
from tests.support.servers.trainer_server import TOKEN, TrainerServer

pytestmark = pytest.mark.slow

KILLED_AT = ("before:", "warm start:", "after_sft:", "step 1:", "after:")
"""A process is killed when it says a line that begins so."""


def killed_at(line: str | None, output: Path, server: TrainerServer) -> list[str]:
    """Runs or continues the specialization until it says a line, or to its end. Returns what it said."""
    environment = {**os.environ, "ART_BASE_URL": server.url, "ART_API_KEY": TOKEN}
    said = []
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed.specialization", str(output)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        for spoken in process.stdout:
            said.append(spoken.strip())
            if line is not None and spoken.startswith(line):
                process.kill()
                break
        process.stdout.read()
    assert process.returncode == (0 if line is None else -9)
    return said


async def test_a_killed_specialization_goes_on_where_it_was(connected: TrainerServer, tmp_path: Path) -> None:
    output = tmp_path / "out"
    said = [killed_at(line, output, connected) for line in KILLED_AT]
    first = (output / "measurements" / "before.jsonl").read_bytes()
    last = killed_at(None, output, connected)
    assert last[-1] == f"done {POLICY}@1"
    assert (output / "measurements" / "before.jsonl").read_bytes() == first, "it was not measured again"
    assert not any(line.startswith("before:") for line in last)
    assert not any(line.startswith("step 1:") for line in said[-1]), "the step was not taken again"
    events = [json.loads(line) for line in (output / "progress.jsonl").read_text().splitlines()]
    ends = Counter(line["stage"] for line in events if line["event"] == "end")
    stages = ["scenarios", "before", "prompted", "warm start", "after_sft", "rl", "after"]
    assert ends == Counter(stages), "every stage ended once"
    assert [line["row"]["step"] for line in events if line["event"] == "step"] == [1, 2]
    assert [line["spent"] for line in events] == sorted(line["spent"] for line in events)
    assert "The run has not ended" not in (output / "report.md").read_text()
    assert (output / "adapter" / "adapter_model.safetensors").exists()
    async with TrainerClient() as trainer:
        versions = [one.version for one in await trainer.versions(POLICY)]
    assert versions == [0, 1], "the warm start that a killed process had sent was not sent again"
