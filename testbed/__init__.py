"""What tests and benchmarks share: a small engine, a tiny base model, environments for programs of other people."""
