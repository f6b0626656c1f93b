"""Logs of child processes: bounded in size and age. A child writes on at the end of the same file meanwhile."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

MOST_BYTES = 64 * 2**20
"""Size of a log after which it begins anew."""
_OLDER = ".1.log"


def rotate_logs(directory: Path, days: float, most_bytes: int = MOST_BYTES) -> None:
    """Begins logs anew that are too large, and deletes what is older.

    `trainer.log` becomes `trainer.1.log`, in place of an earlier one. A child has its log open for appending, so the
    file is copied and emptied; a line that it writes in between is lost.

    Args:
        directory: Of the logs.
        days: Days after which a log that nothing was added to is deleted, if its process has ended.
        most_bytes: Size of a log after which it begins anew.

    Raises:
        OSError: A file could not be copied or deleted.
    """
    before = time.time() - days * 86400
    for log in sorted(directory.glob("*.log")):
        if log.stat().st_mtime < before and not log.with_suffix(".pid").exists():
            log.unlink()
        elif log.stat().st_size > most_bytes and not log.name.endswith(_OLDER):
            aside = log.with_suffix(".new")
            shutil.copyfile(log, aside)
            os.replace(aside, log.with_suffix(_OLDER))
            os.truncate(log, 0)
