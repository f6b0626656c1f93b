"""The oldest LangChain, LangGraph and langchain-openai that are supported, against the same server code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from testbed.environments import environment

ROOT = Path(__file__).parents[3]
OLDEST = (
    "langchain-core==1.0.0", "langchain-openai==1.0.0", "langchain==1.0.0", "langgraph==1.0.0",
    "langgraph-prebuilt==1.0.0",  # later ones need a later langgraph, and do not say so
    "langgraph-checkpoint-sqlite==2.0.11",
)  # fmt: skip


@pytest.mark.servers
def test_completions_are_found_with_the_oldest_versions() -> None:
    python = environment("oldest-langchain", *OLDEST, overlay=True) / "python"
    tests = ["tests/art_langgraph/chat_model/test_chat_model.py", "tests/art_langgraph/capture/handler/test_shapes.py"]
    # LangChain 1.0 imports transformers where it can, and its ChatOpenAI refuses a function as key; LangGraph 1.0 forks
    # and resumes elsewhere in another way.
    newer = "not imports_no_torch and not key_that_is_a_function and not time_travel and not resume_elsewhere"
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-k", newer, *tests],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
