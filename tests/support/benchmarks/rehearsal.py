"""The rehearsal of benchmarks.gpu on a machine without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def rehearse(*parts: str) -> dict[str, Any]:
    """Rehearses some parts, all of which must succeed, and returns their figures."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--device", "cpu", "--json", "--minutes", "60"]
    done = subprocess.run([*command, "--only", *parts], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["parts"]
    assert {name: part["state"] for name, part in figures.items()} == dict.fromkeys(parts, "done")
    return figures
