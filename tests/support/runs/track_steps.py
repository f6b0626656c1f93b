"""Tracks a training of two steps, and one more step when it goes on. A program, for environments with the libraries.

`python -m tests.support.runs.track_steps TRACKER HOME`: prints what was said, and how many calls were lost, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from art_langgraph.trackers import CLIENT_TRACKERS
from tests.support.patience import PATIENCE
from tests.support.runs.trackers import a_run, tracked
from trainer_server.tracking import Tracking, make_trackers


def track(name: str, home: Path) -> tuple[list[str], dict[str, int]]:
    """Tells a tracker of three steps, as two processes would, one after another.

    Args:
        name: Of the tracker.
        home: For its files.

    Returns:
        What was said, and how many calls of the last part were lost.
    """
    said: list[str] = []
    for steps in ((1, 2), (3,)):
        tracking = Tracking(make_trackers([name], CLIENT_TRACKERS), said.append)
        tracking.start(tracked(home, config={"n": 8, "grpo": {"lr": 0.001, "nodes": None}}))
        for step in steps:
            metrics = {"reward": step / 4, "note": "text", "metrics": {"gap": -float(step), "kl": float("nan")}}
            tracking.log(step, metrics, [a_run()])
        tracking.finish(None, PATIENCE)
    return said, tracking.lost_calls


if __name__ == "__main__":
    print(json.dumps(track(sys.argv[1], Path(sys.argv[2]))))
