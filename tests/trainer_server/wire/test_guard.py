"""The guard: what it runs ends with its starter."""

from __future__ import annotations

import subprocess
import sys

from tests.support.patience import PATIENCE
from trainer_server.wire.guard import guarded

STARTER = """
import os, shlex, subprocess
from trainer_server.wire.guard import guarded
orphaned = "while read -r pid name state parent rest < /proc/self/stat && [ $parent = $STARTER ]; do sleep 0.01; done"
line = orphaned + "; exec " + shlex.join(guarded(["echo", "it ran"]))
subprocess.Popen(["sh", "-c", line], env={**os.environ, "STARTER": str(os.getpid())})
"""
"""Starts a guard that is held back until this process is gone."""


def test_a_command_runs_and_its_status_is_returned() -> None:
    assert subprocess.run(guarded(["sh", "-c", "exit 3"]), timeout=PATIENCE).returncode == 3


def test_a_command_whose_starter_died_before_the_guard_ran_is_not_started() -> None:
    done = subprocess.run([sys.executable, "-c", STARTER], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
