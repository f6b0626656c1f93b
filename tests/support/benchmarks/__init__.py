"""What tests of benchmarks share."""
