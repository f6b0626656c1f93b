"""A burst of chats against a server that may open few files: no engine is restarted, and every chat is answered."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_burst_under_a_small_limit_of_files_is_answered() -> None:
    line = [sys.executable, "-m", "benchmarks.load", "--json", "--chats", "300", "--files", "512", "--seconds", "0.2"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["answered"], result["failed"], result["restarts"]) == (300, 0, 0), done.stderr
