"""Teaches an agent of the OpenAI Agents SDK to answer questions about a shop by its tools."""

from __future__ import annotations

from pathlib import Path

from art_examples.learning.program import main
from art_examples.openai_agents.task import openai_agents

if __name__ == "__main__":
    main(__doc__, {"openai_agents": openai_agents}, Path(__file__).parent)
