"""Commands to watch with: a run, a server, a training, the throughput."""
