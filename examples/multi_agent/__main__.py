"""Teaches a supervisor to hand questions to the right workers. RL trains the supervisor's node alone."""

from __future__ import annotations

from pathlib import Path

from art_examples.learning.program import main
from art_examples.multi_agent.task import multi_agent

if __name__ == "__main__":
    main(__doc__, {"multi_agent": multi_agent}, Path(__file__).parent)
