"""Teaches the embedded model to answer questions by SQL, about tables that it has not seen in training."""

from __future__ import annotations

from pathlib import Path

from art_examples.learning.program import main
from art_examples.sql_agent.task import sql

if __name__ == "__main__":
    main(__doc__, {"sql": sql}, Path(__file__).parent)
