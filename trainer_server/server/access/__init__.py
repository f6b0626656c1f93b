"""Who may reach the server, and how much of it: addresses and certificates, the token, connections, bodies."""
