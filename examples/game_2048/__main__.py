"""Teaches the embedded model 2048 on a small board: trajectories of up to 24 answers, and a shaped reward."""

from __future__ import annotations

from pathlib import Path

from art_examples.game_2048.task import game_2048
from art_examples.learning.program import main

if __name__ == "__main__":
    main(__doc__, {"game_2048": game_2048}, Path(__file__).parent)
