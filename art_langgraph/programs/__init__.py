"""Programs that are no graphs: functions as agents, their clients and child processes tied to a rollout, sessions."""
