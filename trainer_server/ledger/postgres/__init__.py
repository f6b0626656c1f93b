"""The ledger and the books in a PostgreSQL database. Needs psycopg: `pip install 'art-langgraph[postgres]'`."""

from trainer_server.ledger.postgres.books import PostgresBooks
from trainer_server.ledger.postgres.database import database_label
from trainer_server.ledger.postgres.fleet import postgres_fleet
from trainer_server.ledger.postgres.ledger import PostgresLedger
from trainer_server.ledger.postgres.move import move, put_away
from trainer_server.ledger.postgres.trainer_lock import TrainerLock

__all__ = ["PostgresBooks", "PostgresLedger", "TrainerLock", "database_label", "move", "postgres_fleet", "put_away"]
