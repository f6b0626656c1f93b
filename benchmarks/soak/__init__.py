"""Many rollouts on a server that goes on learning: what it loses, keeps, and adds to an answer."""
