"""`make audit`: what it makes of pip-audit's findings, of its faults, and of a service that cannot be reached."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "audit"
FOUND = 'while [ "$1" != --output ]; do shift; done; echo "jinja2 3.1.2 PYSEC-1" > "$2"; exit 1'
FINE = "echo 'No known vulnerabilities found' >&2"
AWAY = "echo 'ERROR:pip_audit._cli:Could not connect to OSV: Max retries exceeded' >&2; exit 1"
BROKEN = "echo 'Traceback: no such option' >&2; exit 2"


@pytest.mark.parametrize(
    ("does", "status", "says"),
    [
        (FOUND, 1, "jinja2 3.1.2 PYSEC-1"),
        (FINE, 0, "No known vulnerabilities found"),
        (AWAY, 0, "make audit: skipped. OSV (https://api.osv.dev) cannot be reached"),
        (BROKEN, 2, "no such option"),
    ],
    ids=["found", "fine", "away", "broken"],
)
def test_the_status_and_what_is_said(tmp_path: Path, does: str, status: int, says: str) -> None:
    tool = tmp_path / "pip-audit"
    tool.write_text(f"#!/bin/sh\n{does}\n")
    tool.chmod(0o755)
    done = subprocess.run([SCRIPT, tool, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, says in done.stdout) == (status, True), done.stdout + done.stderr
