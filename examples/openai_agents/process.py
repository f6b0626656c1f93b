"""The process of the agent."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
import venv
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from art_examples.learning.child import child
from art_examples.learning.runs import tell

from trainer_server.common import Home

PACKAGES = ("openai-agents>=0.24,<0.25", "uvicorn>=0.30")
HERE = Path(__file__).parent


def agents_python() -> str:
    """The Python of an environment with the SDK: ART_AGENTS_PYTHON, or one in ART_CACHE that is made on first use.

    So the example shows an agent whose process has nothing of this project, and packages of its own versions.
    """
    if given := os.environ.get("ART_AGENTS_PYTHON"):
        return given
    where = Home.find().cache / "examples" / "openai-agents"
    python, ready = where / "bin" / "python", where / ".ready"
    if not ready.exists() or ready.read_text() != str(PACKAGES):
        tell(f"installing {', '.join(PACKAGES)} into {where}")
        venv.create(where, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        ready.write_text(str(PACKAGES))
    return str(python)


@asynccontextmanager
async def agent_process() -> AsyncIterator[str]:
    """Runs the agent until the block is left. Yields its address."""
    python = await asyncio.to_thread(agents_python)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "plain_openai")])
    environment = {"PYTHONPATH": paths, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    command, url = [python, "-m", "uvicorn", "agent:app", "--port", port], f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = child(command, f"{url}/health", folder / "agent.log", environment, folder)
        await asyncio.to_thread(stack.enter_context, running)
        yield url
