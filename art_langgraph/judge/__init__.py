"""RULER: a judge model compares the runs of a scenario."""
