"""From scenarios to a model that is better at a server: reward, training, report."""
