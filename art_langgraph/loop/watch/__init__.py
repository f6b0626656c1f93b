"""A training loop that watches itself: held-out evaluation, alarms, the end of a run, its best version."""
