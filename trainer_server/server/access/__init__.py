"""Access to the server: addresses and certificates, tokens and scopes, quotas, connections, bodies, the audit log."""
