"""What tests and benchmarks share: a small engine, a tiny base model, an MCP server, environments of other programs."""
