"""From an MCP server's catalog to executed, verifiable scenarios."""
