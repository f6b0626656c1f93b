"""Teaches two policies to play Codenames together: a spymaster and a guesser, trained in turns."""

from __future__ import annotations

from pathlib import Path

from art_examples.codenames.task import codenames
from art_examples.learning.program import main

if __name__ == "__main__":
    main(__doc__, {"codenames": codenames}, Path(__file__).parent)
