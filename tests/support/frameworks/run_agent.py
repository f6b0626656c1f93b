"""Runs agents of other frameworks, each in a process of its framework's environment."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Sequence

from art_langgraph import TrajectoryGroup
from tests.support.client_environments import ROOT
from tests.support.frameworks.environments import framework_environment
from tests.support.frameworks.table import Framework

SCRIPTS = ROOT / "tests" / "frameworks" / "agents"
QUIET = {
    "ANONYMIZED_TELEMETRY": "False",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""Switches off whatever the frameworks would send elsewhere."""


async def run_agent(
    framework: Framework, inputs: Sequence[str], url: str, key: str, *, n: int = 1, seconds: float = 600
) -> list[TrajectoryGroup]:
    """Runs a framework's agent on all inputs at once.

    Args:
        framework: Whose script is run.
        inputs: The tasks.
        url: Address of the trainer server.
        key: Its key.
        n: Runs of each task.
        seconds: For all of them.

    Returns:
        A group for each task.
    """
    python = await asyncio.to_thread(framework_environment, framework.environment)
    with tempfile.TemporaryDirectory() as home:  # frameworks keep caches and databases there
        child = await asyncio.create_subprocess_exec(
            str(python), "-m", "tests.support.frameworks.in_rollouts", str(SCRIPTS / f"{framework.script}.py"),
            env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT), "HOME": home, "ART_BASE_URL": url, "ART_API_KEY": key},
            cwd=home,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(seconds):
                said, complained = await child.communicate(json.dumps({"inputs": list(inputs), "n": n}).encode())
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    assert child.returncode == 0, complained.decode()[-3000:]
    return [TrajectoryGroup.model_validate(group) for group in json.loads(said)]
