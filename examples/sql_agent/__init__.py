"""An agent that answers questions by SQL: it writes a query, checks it on the database, and rewrites it."""
