"""MCP servers of other projects, and the worlds in which the benchmark of `specialize` runs them."""
