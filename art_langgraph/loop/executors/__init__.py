"""Where rollouts run: in this process, or as tasks of a Ray cluster."""
