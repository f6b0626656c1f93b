"""What a running graph does, written into trajectories: callbacks, the scope of a rollout, the process-wide hook."""
