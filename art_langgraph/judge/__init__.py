"""RULER: a judge model compares the runs of one scenario."""
