"""Logs: bounded in size and age, while a process writes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from trainer_server.process.child import rotate_logs


def test_a_log_that_is_too_large_begins_anew_and_its_process_writes_on(tmp_path: Path) -> None:
    (tmp_path / "trainer.pid").touch()
    with (tmp_path / "trainer.log").open("ab", buffering=0) as log:
        for number in range(3):
            log.write(f"{number}".encode() * 100)
            rotate_logs(tmp_path, 30, most_bytes=50)
        log.write(b"end")
    assert (tmp_path / "trainer.log").read_text() == "end"
    assert (tmp_path / "trainer.1.log").read_text() == "2" * 100
    rotate_logs(tmp_path, 30, most_bytes=50)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trainer.1.log", "trainer.log", "trainer.pid"]


def test_old_logs_of_processes_that_ended_are_deleted(tmp_path: Path) -> None:
    for name in ("trainer.log", "trainer.1.log", "export.log", "new.log"):
        (tmp_path / name).write_text("x")
        if name != "new.log":
            os.utime(tmp_path / name, (time.time() - 40 * 86400,) * 2)
    (tmp_path / "trainer.pid").touch()
    rotate_logs(tmp_path, 30)
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["new.log", "trainer.log"]
