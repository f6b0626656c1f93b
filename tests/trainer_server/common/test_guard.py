"""The guard: what it runs ends with its starter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from trainer_server.common.guard import guard_command

STARTER = """
import os, shlex, subprocess
from trainer_server.common.guard import guard_command
orphaned = "while read -r pid name state parent rest < /proc/self/stat && [ $parent = $STARTER ]; do sleep 0.01; done"
line = orphaned + "; exec " + shlex.join(guard_command(["echo", "it ran"]))
subprocess.Popen(["sh", "-c", line], env={**os.environ, "STARTER": str(os.getpid())})
"""
"""Starts a guard that is held back until this process is gone."""


def test_a_command_runs_and_its_status_is_returned() -> None:
    assert subprocess.run(guard_command(["sh", "-c", "exit 3"]), timeout=PATIENCE).returncode == 3


def test_the_status_of_commands_that_end_at_once_is_returned() -> None:
    """Many at a time: a guard that is not given the processor finds its command ended."""
    guards = [subprocess.Popen(guard_command(["true"])) for _ in range(30)]
    try:
        assert [guard.wait(PATIENCE) for guard in guards] == [0] * 30
    finally:
        for guard in guards:
            guard.kill()


def test_a_command_whose_starter_died_before_the_guard_ran_is_not_started() -> None:
    done = subprocess.run([sys.executable, "-c", STARTER], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


DAEMON = """
import os, signal, subprocess, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
"""
"""Starts a daemon of a session of its own, with no parent, that does not end with TERM."""


@pytest.mark.parametrize("ends", ["by itself", "with TERM", "with its starter"])
def test_a_daemon_ends_with_the_command_that_started_it(ends: str) -> None:
    code = DAEMON if ends == "by itself" else f"{DAEMON}\ntime.sleep(600)"
    line = guard_command([sys.executable, "-c", code], grace=0.1)
    if ends == "with its starter":
        starting = f"import subprocess, sys; sys.path[:0] = {sys.path!r}"
        starting += "; from trainer_server.common.guard import guard_command"
        starting += f"; subprocess.Popen(guard_command([sys.executable, '-c', {code!r}], grace=0.1)); input()"
        line = [sys.executable, "-c", starting]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as guard:
        assert guard.stdout
        daemon = int(guard.stdout.readline())
        if ends == "with TERM":
            guard.terminate()
        elif ends == "with its starter":
            guard.kill()
        assert guard.stdout.read() == "", "until the last of them has closed it"
    assert not alive(daemon)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
