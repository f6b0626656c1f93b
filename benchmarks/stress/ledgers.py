"""The ledger of the server that is measured: the file of its home, or a PostgreSQL database."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.postgres import postgres_running
from trainer_server.common import Home


@dataclass(frozen=True, slots=True)
class ChosenLedger:
    """Which ledger the server has.

    Args:
        url: Address of the database; None: the file of its home.
    """

    url: str | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that tell the server."""
        return {} if self.url is None else {"ART_LEDGER": self.url}

    def place(self, home: Home) -> Path | str:
        """Where its rows are; see `books.rows_of`.

        Args:
            home: The server's home.
        """
        return home.ledger if self.url is None else self.url


def add_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--ledger` to the options of a program."""
    parser.add_argument(
        "--ledger",
        default="sqlite",
        help="of the server: sqlite; postgres, which starts Debian's PostgreSQL with fsync; or postgresql://… of an "
        "empty database (sqlite)",
    )


@contextmanager
def chosen_ledger(name: str) -> Iterator[ChosenLedger]:
    """The ledger that `--ledger` names.

    Raises:
        PostgresMissing: PostgreSQL is not installed.
        SystemExit: There is no such ledger.
    """
    if name == "sqlite":
        yield ChosenLedger()
    elif name == "postgres":
        with postgres_running(fsync="on") as server:
            yield ChosenLedger(server.socket_url())
    elif name.startswith(("postgresql://", "postgres://")):
        yield ChosenLedger(name)
    else:
        raise SystemExit(f"--ledger {name}: sqlite, postgres, or an address postgresql://USER@HOST:PORT/DATABASE")
