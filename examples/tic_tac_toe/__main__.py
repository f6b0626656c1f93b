"""Teaches the embedded model tic-tac-toe: against a fixed opponent, and in self-play between versions."""

from __future__ import annotations

from pathlib import Path

from art_examples.learning.program import main
from art_examples.tic_tac_toe.task import self_play, tic_tac_toe

if __name__ == "__main__":
    main(__doc__, {"tic_tac_toe": tic_tac_toe, "self_play": self_play}, Path(__file__).parent)
