"""Beside production: a candidate version takes over, or is rolled back, by what it does to a share of the rollouts.

`pilot.py` has the phases in their order: `preparation.py` trains and measures a candidate, `trial.py` compares it in
production. `decision.py` has the statistics, `state_store.py` the state, `runs.py` reads runs and their rewards.
"""
