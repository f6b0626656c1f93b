"""A short soak: real processes, clients that leave, versions that change, and a ledger that agrees with the clients."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from testbed.postgres import postgres_installed


@pytest.mark.slow
def test_a_short_soak_loses_and_doubles_nothing() -> None:
    """With a ledger in PostgreSQL, where it is installed. Chaos has one in SQLite."""
    ledger = "postgres" if postgres_installed() else "sqlite"
    line = [sys.executable, "-m", "benchmarks.soak", "--json", "--minutes", "0.15", "--rollouts", "24"]
    line += ["--ledger", ledger]
    done = subprocess.run([*line, "--swap-every", "1"], capture_output=True, text=True, timeout=900)
    assert done.stdout, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ledger"] == ledger
    assert (result["errors_ours"], result["errors"]) == (0, [])
    found = {name: result[name] for name in ("lost", "differing", "doubled", "unasked", "unrecorded", "mixed")}
    assert found == dict.fromkeys(found, 0), done.stderr
    assert done.returncode == 0, done.stderr
    assert result["left"] > 0
    assert result["swaps"] > 0
    assert result["received"] + result["left"] > result["requests"]  # the trainer's and the timed answers are received
    assert result["rows"] >= result["received"]
    assert result["timed"] > 0
