"""What tests and benchmarks share: a small engine, a tiny base model, virtual environments for other people's programs."""
