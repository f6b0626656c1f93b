"""Scenarios → rollouts → rewards → training step → evaluation."""
