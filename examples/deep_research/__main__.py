"""Teaches a planner, its searchers and a writer to answer questions from a corpus, each by a reward of its own."""

from __future__ import annotations

from pathlib import Path

from art_examples.deep_research.task import deep_research
from art_examples.learning.program import main

if __name__ == "__main__":
    main(__doc__, {"deep_research": deep_research}, Path(__file__).parent)
