"""Teaches an agent that knows OpenAI's client alone to answer questions about a shop by its tools."""

from __future__ import annotations

from pathlib import Path

from art_examples.learning.program import main
from art_examples.plain_openai.task import plain_openai

if __name__ == "__main__":
    main(__doc__, {"plain_openai": plain_openai}, Path(__file__).parent)
