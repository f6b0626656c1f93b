"""An agent that solves deduction puzzles: when, where, and who."""
