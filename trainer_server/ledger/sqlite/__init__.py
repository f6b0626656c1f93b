"""The ledger in SQLite, and the books beside it."""

from trainer_server.ledger.sqlite.books import SQLiteBooks
from trainer_server.ledger.sqlite.ledger import SQLiteLedger

__all__ = ["SQLiteBooks", "SQLiteLedger"]
