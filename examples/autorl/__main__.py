"""Trains an agent from one sentence. `--judge MODEL` invents scenarios and compares runs; without it rules stand in."""

from __future__ import annotations

from pathlib import Path

from art_examples.autorl.learner import from_a_sentence
from art_examples.learning.program import run_learners

if __name__ == "__main__":
    run_learners(__doc__, {"autorl": from_a_sentence}, Path(__file__).parent)
