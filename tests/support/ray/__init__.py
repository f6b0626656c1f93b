"""A Ray cluster of two nodes, and the program that runs rollouts on it."""
