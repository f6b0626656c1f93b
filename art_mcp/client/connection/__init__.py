"""A connection to an MCP server: the SDK, sessions, what the server writes to stderr, and patience with refusals."""
