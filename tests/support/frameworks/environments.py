"""Environments with other frameworks beside our client: `pip install art-langgraph FRAMEWORK`, as a user would.

Their packages do not fit together in one environment. Versions are pinned to the minor: the tests compare what the
frameworks send with the table in docs/frameworks.md.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.client_environments import client_environment

PACKAGES: dict[str, tuple[str, ...]] = {
    "agents": (
        "openai-agents>=0.24,<0.25",
        "pydantic-ai-slim[openai]>=2.62,<3",
        "llama-index-llms-openai-like>=0.8,<0.9",
        "smolagents[openai]>=1.26,<1.27",
        "anthropic>=2,<3",
    ),
    "crewai": ("crewai>=1.15,<1.16",),
    "dspy": (
        "dspy>=3.4,<3.5",
        "ag2[openai]>=1.2,<1.3",
        "autogen-agentchat>=0.7,<0.8",
        "autogen-ext[openai]>=0.7,<0.8",
    ),
}
"""What pip installs, by environment."""


def framework_environment(name: str) -> Path:
    """The Python of an environment with the client and the packages of `PACKAGES[name]`."""
    return client_environment(f"frameworks-{name}", *PACKAGES[name]) / "python"
