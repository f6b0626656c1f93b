"""Scenarios that no run solves are run once more with a hint, and the policy learns from itself with the hint."""
