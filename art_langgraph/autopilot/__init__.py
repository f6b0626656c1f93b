"""Beside production: a candidate version takes over, or is rolled back, by what it does to a share of the rollouts."""
