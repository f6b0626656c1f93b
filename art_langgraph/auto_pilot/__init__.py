"""Beside production: a candidate version takes over, or is rolled back, by what it does to a share of the rollouts.

`pilot.py` tells the story; `decision.py` decides, `state_store.py` remembers, `runs.py` reads what people and judges
said.
"""
