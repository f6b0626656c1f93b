"""What the command line loads before it does anything: nothing that takes seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("langchain_core", "langgraph", "langchain", "langchain_openai", "litellm", "torch", "transformers", "mcp")
CODE = f"""
import sys
from art_langgraph.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print("heavy:", *(name for name in {HEAVY} if name in sys.modules))
"""


@pytest.mark.parametrize("words", [("version",), ("--help",), ("trajectories", "--help"), ("specialize", "--help")])
def test_help_and_version_load_nothing_heavy(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy:"
