"""Environments with other frameworks beside our client: `pip install art-langgraph FRAMEWORK`, as a user would.

Some frameworks need version 3 of the package `openai`, and others version 2; a third environment has those that take
either, so that the first two stay as they are. Versions are pinned
to the minor: the tests compare what the frameworks send with the table in docs/capture/frameworks/index.md.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.client_environments import client_environment

PACKAGES: dict[str, tuple[str, ...]] = {
    "openai-3": (
        "openai>=3.54,<3.55",
        "anthropic>=2.12,<2.13",
        "openai-agents>=0.24,<0.25",
        "pydantic-ai-slim[openai]>=2.68,<2.69",
        "smolagents[openai]>=1.26,<1.27",
        "ag2[openai]>=1.2,<1.3",
    ),
    "openai-2": (
        "openai>=2.54,<3",
        "crewai>=1.15,<1.16",
        "llama-index-core>=0.14,<0.15",
        "llama-index-llms-openai-like>=0.8,<0.9",
        "autogen-agentchat>=0.7,<0.8",
        "autogen-ext[openai]>=0.7,<0.8",
        "dspy>=3.4,<3.5",
    ),
    "more": ("openai>=2.54,<4", "agno>=3.1,<3.2", "google-adk>=2.13,<2.14"),
}
"""What pip installs, by environment."""


def framework_environment(name: str) -> Path:
    """The Python of an environment with the client and the packages of `PACKAGES[name]`."""
    return client_environment(f"frameworks-{name}", *PACKAGES[name]) / "python"
