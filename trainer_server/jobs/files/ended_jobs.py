"""What ended.jsonl holds: the outcomes of jobs whose directories were deleted, a line each."""

from __future__ import annotations

import json
import os
from pathlib import Path

from trainer_server.process.files import write_atomic
from trainer_server.wire import Job


class EndedJobs:
    """The file `jobs/ended.jsonl`. A job may have two lines there if a process was killed while it deleted the job.

    Args:
        jobs: The directory `jobs/`.
    """

    def __init__(self, jobs: Path) -> None:
        self._path = jobs / "ended.jsonl"

    def add(self, line: str) -> None:
        """Adds the line of a job, and waits until it is on disk. A line that a full disk tore stays a line of its own.

        Args:
            line: As `line_of` returns it.

        Raises:
            OSError: It could not be written.
        """
        with self._path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.write(b"\n")
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def erase(self, policy: str) -> None:
        """Deletes the lines of a policy, and those that cannot be read: they may be of it."""
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
            write_atomic(self._path, "".join(f"{line}\n" for line in lines if line and not _may_be_of(line, policy)))


def line_of(done_file: Path) -> str:
    """The line for a job, with its metrics and without its trajectories.

    Args:
        done_file: The job's done.json. Of a damaged one, the line has the text.

    Raises:
        OSError: It cannot be read.
    """
    text = done_file.read_text(encoding="utf-8", errors="replace")
    try:
        return Job.model_validate_json(text).without_trajectories().model_dump_json() + "\n"
    except ValueError:
        return json.dumps({"id": done_file.parent.name, "damaged": text}) + "\n"


def _may_be_of(line: str, policy: str) -> bool:
    """Whether a line is of a policy. One that cannot be read may be of any: an interrupted write tore it."""
    try:
        return bool(json.loads(line).get("policy") == policy)
    except (ValueError, AttributeError):
        return True
