"""Trains an app, which `langgraph dev` runs, from the feedback of its users. Its graph stays as it is."""

from __future__ import annotations

from pathlib import Path

from art_examples.langgraph_dev.learner import from_feedback
from art_examples.learning.program import run_learners

if __name__ == "__main__":
    run_learners(__doc__, {"langgraph_dev": from_feedback}, Path(__file__).parent)
