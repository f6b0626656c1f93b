"""The tracker that writes rows to a file."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.patience import PATIENCE
from tests.support.runs.trackers import tracked
from trainer_server.tracking import JSONLTracker, Tracking


def test_a_training_that_is_continued_adds_to_its_file(tmp_path: Path) -> None:
    for step in (1, 2):
        tracking = Tracking([("jsonl", JSONLTracker())], print)
        tracking.start(tracked(tmp_path))
        tracking.log(step, {"reward": step / 2, "note": "first\u2028half"})
        tracking.finish(None, PATIENCE)
    lines = (tmp_path / "progress/agent-1.jsonl").read_bytes().decode().split("\n")
    assert [json.loads(line) for line in lines if line] == [
        {"step": 1, "reward": 0.5, "note": "first\u2028half"},
        {"step": 2, "reward": 1.0, "note": "first\u2028half"},
    ]


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    tracking = Tracking([("jsonl", JSONLTracker(tmp_path / "file/rows.jsonl"))], said.append)
    tracking.start(tracked(tmp_path))
    tracking.finish(None, PATIENCE)
    assert "NotADirectoryError" in said[0] or "FileExistsError" in said[0]
    assert "Is the disk full" in said[0]
