"""A research agent: a planner, searchers that work at the same time, and a writer, each with its own reward."""
