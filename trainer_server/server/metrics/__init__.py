"""What Prometheus reads at `/metrics`: requests and completions are counted, the rest is looked up when it asks."""
