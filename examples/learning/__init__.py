"""What the examples have in common: tasks, how a policy learns one, baselines, and the record of what was measured."""
