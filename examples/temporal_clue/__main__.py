"""Teaches the embedded model to solve deduction puzzles, about people whom it has not met in training."""

from __future__ import annotations

from pathlib import Path

from art_examples.learning.program import main
from art_examples.temporal_clue.task import temporal_clue

if __name__ == "__main__":
    main(__doc__, {"temporal_clue": temporal_clue}, Path(__file__).parent)
