"""Frameworks that nobody here wrote: their environments, and a program that runs their agents inside rollouts."""
