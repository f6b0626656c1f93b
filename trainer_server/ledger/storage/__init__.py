"""What ledgers in SQLite and in PostgreSQL have in common."""
