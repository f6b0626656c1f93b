"""What the server does now: running jobs by phase, engines, throughput."""

from __future__ import annotations

import time
from typing import Any

from trainer_server.common.status import JobPhase, OpenJob
from trainer_server.jobs.board import JobBoard
from trainer_server.server.server import Server
from trainer_server.wire import JobStatus

_WORDS: dict[JobPhase, str] = {
    "queued": "waits for the trainer",
    "prepare": "an engine prepares what the trainer needs",
    "train": "the trainer computes",
    "load": "the engines load the version",
}


def running_jobs(board: JobBoard) -> list[OpenJob]:
    """The jobs that have not ended, oldest first. Reads a few small files of each."""
    running = []
    for job_id in board.open_ids():
        job = board.job(job_id)
        if job is None or job.status.final:
            continue
        started = board.started_at(job_id)
        phase: JobPhase
        if board.training_outcome(job_id) is not None:
            phase = "load"
        elif started is not None or job.status is JobStatus.running:
            phase = "train"
        else:
            phase = "queued" if board.ready(job_id) else "prepare"
        running.append(OpenJob(job=job, phase=phase, words=_WORDS[phase], since=started or job.created))
    return running


def engine_rows(server: Server) -> list[dict[str, Any]]:
    """Each engine as a table shows it."""
    rows = []
    for engine in server.engines:
        told = engine.describe()
        state = "ready" if told.get("ready") else "rests for a step" if told.get("resting") else "not ready"
        rows.append({**told, "state": state, "adapters": list(told.get("adapters") or ())})
    return rows


def throughput(minutes: list[tuple[int, int, int, int]], span: int = 60) -> dict[str, list[float]]:
    """Completions and sampled tokens of each of the last minutes, for a chart; minutes without any are 0.

    Args:
        minutes: Of `RunList.minutes`.
        span: How many minutes.
    """
    known = {minute: (completions, tokens, failed) for minute, completions, tokens, failed in minutes}
    now = int(time.time() // 60)
    places = range(now - span + 1, now + 1)
    return {
        "x": [float(minute * 60) for minute in places],
        "completions": [float(known.get(minute, (0, 0, 0))[0]) for minute in places],
        "tokens": [known.get(minute, (0, 0, 0))[1] / 60 for minute in places],
        "failed": [float(known.get(minute, (0, 0, 0))[2]) for minute in places],
    }
