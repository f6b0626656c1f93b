"""The oldest LangChain, LangGraph and langchain-openai that are supported, against the same server code."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from trainer_server.wire import Home

ROOT = Path(__file__).parents[2]
OLDEST = (
    "langchain-core==1.0.0", "langchain-openai==1.0.0", "langchain==1.0.0", "langgraph==1.0.0",
    "langgraph-prebuilt==1.0.0",  # later ones need a later langgraph, and do not say so
    "langgraph-checkpoint-sqlite==2.0.11",
)  # fmt: skip


@pytest.fixture(scope="module")
def oldest() -> Path:
    """An interpreter that finds those versions first, and everything else where the tests' own does."""
    where = Home.find().cache / "test-envs" / "oldest-langchain"
    python, done = where / "bin" / "python", where / ".installed"
    if not done.exists() or done.read_text() != "\n".join(OLDEST):
        venv.create(where, clear=True, with_pip=True)
        (packages,) = where.glob("lib/python*/site-packages")
        (packages / "zz_tests.pth").write_text("\n".join(site.getsitepackages()))
        command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *OLDEST]
        subprocess.run(command, check=True, timeout=280, stdout=sys.stderr)
        done.write_text("\n".join(OLDEST))
    return python


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_completions_are_found_with_the_oldest_versions(oldest: Path) -> None:
    tests = ["tests/art_langgraph/test_chat_model.py", "tests/art_langgraph/test_shapes.py"]
    # LangChain 1.0 imports transformers where it can; LangGraph 1.0 forks and resumes elsewhere in another way.
    newer = "not imports_no_torch and not time_travel and not resume_elsewhere"
    done = subprocess.run(
        [oldest, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-k", newer, *tests],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
