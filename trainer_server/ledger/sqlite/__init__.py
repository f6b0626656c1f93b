"""The ledger in SQLite, and the file beside it."""

from trainer_server.ledger.sqlite.ledger import SQLiteLedger

__all__ = ["SQLiteLedger"]
