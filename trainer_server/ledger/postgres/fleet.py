"""Opens what servers share in a PostgreSQL database."""

from __future__ import annotations

import os
import socket

from trainer_server.ledger.postgres.async_transactions import AsyncTransactions
from trainer_server.ledger.postgres.gateways import FIRST, PostgresGateways
from trainer_server.ledger.postgres.pins import PostgresPins
from trainer_server.ledger.storage.fleet import Fleet


def postgres_fleet(url: str) -> Fleet:
    """What the servers of a database share.

    Args:
        url: `postgresql://…`, as libpq reads it.

    Raises:
        ConfigError, LedgerError, NewerSchema: See `Database`.
    """
    transactions = AsyncTransactions(url, "gateways", [FIRST])
    return Fleet(
        PostgresGateways(transactions, f"process {os.getpid()} on {socket.gethostname()}"), PostgresPins(transactions)
    )
