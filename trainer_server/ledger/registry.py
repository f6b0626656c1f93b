"""Ledgers by name, as `serve --ledger` takes them."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from trainer_server.common import Home
from trainer_server.common.extensions import load
from trainer_server.common.plugins import check_members, factory_named
from trainer_server.ledger.base import Ledger, LedgerFactory
from trainer_server.ledger.books import Books
from trainer_server.ledger.fleet import Fleet
from trainer_server.ledger.sqlite import SQLiteBooks, SQLiteLedger
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from trainer_server.ledger.postgres import TrainerLock

LEDGERS: dict[str, LedgerFactory] = {"sqlite": lambda home: SQLiteLedger(home.ledger)}
"""Factories of the ledgers in this package that have a name. One in PostgreSQL is named by the address of the database,
`postgresql://…`. A ledger that is defined elsewhere is named `module:factory`."""
_NO_ADDRESSES = ("postgres", "postgresql")
ADDRESS = "ART_LEDGER"
"""Environment variable with the value of `--ledger`. Command lines can be read by others, and an address may have a
password."""


def ledger_factory(name: str) -> LedgerFactory:
    """The function that opens a ledger.

    Args:
        name: A key of LEDGERS, `postgresql://…`, or `module:factory` for a ledger that is defined elsewhere. The module
            must be importable in the server and in the trainer process (installed, or on PYTHONPATH).

    Returns:
        The factory. It raises ConfigError for a ledger that lacks a part of the protocol.

    Raises:
        ConfigError: There is no such ledger, its module cannot be imported, or its address cannot be read.
    """
    if is_address(name):
        package = postgres()
        package.database_label(name)

        def connect(_home: Home) -> Ledger:
            ledger: Ledger = package.PostgresLedger(name)
            return ledger

        return connect
    if name in _NO_ADDRESSES:
        raise ConfigError(f"--ledger {name}: name the database by its address, postgresql://USER@HOST:PORT/DATABASE")
    if "://" in name:
        raise ConfigError(f"--ledger {name}: there is sqlite, postgresql://USER@HOST:PORT/DATABASE, or module:factory")
    factory = factory_named("--ledger", name, LEDGERS, "opens a ledger")

    def make(home: Home) -> Ledger:
        ledger = factory(home)
        check_members("--ledger", name, ledger, Ledger)
        return ledger

    return make


def open_ledger(name: str, home: Home) -> Ledger:
    """Opens a ledger by its name, for the server whose state lies under `home`. Raises what `ledger_factory` does."""
    return ledger_factory(name)(home)


def open_books(name: str, home: Home) -> Books:
    """Opens the database of rollouts, runs and draws: that of a ledger in PostgreSQL, else a file of the home.

    Args:
        name: The ledger, as `ledger_factory` has it.
        home: The server's home.

    Raises:
        LedgerError: The file cannot be made or opened, or the database cannot be reached.
        NewerSchema: A newer release wrote it.
    """
    if is_address(name):
        books: Books = postgres().PostgresBooks(name)
        return books
    return SQLiteBooks(home.rollouts)


def open_trainer_lock(name: str, home: Home) -> TrainerLock | None:
    """The lock of the server that trains on a ledger; None: the ledger is in the home, which one server can use.

    Args:
        name: The ledger, as `ledger_factory` has it.
        home: The server's home.

    Raises:
        LedgerError: The database cannot be reached.
        NewerSchema: A newer release made its tables.
    """
    if not is_address(name):
        return None
    lock: TrainerLock = postgres().TrainerLock(name, str(home.root))
    return lock


def open_fleet(name: str) -> Fleet | None:
    """Opens what the servers of one database share; None: the ledger is in the home, which one server can use.

    Args:
        name: The ledger, as `ledger_factory` has it.

    Raises:
        LedgerError: The database cannot be reached.
        NewerSchema: A newer release made its tables.
    """
    if not is_address(name):
        return None
    fleet: Fleet = postgres().postgres_fleet(name)
    return fleet


def is_address(name: str) -> bool:
    """Whether a ledger is named by the address of a PostgreSQL database."""
    return name.startswith(("postgresql://", "postgres://"))


def secrets_of(name: str) -> list[str]:
    """What must not be printed of a ledger's name: an address, and the password in it."""
    if not is_address(name):
        return []
    try:
        parts = urlsplit(name)
        passwords = [parts.password or "", *parse_qs(parts.query).get("password", [])]
    except ValueError:
        passwords = []
    return [name, *passwords, *map(unquote, passwords)]


def postgres() -> ModuleType:
    """The package of PostgreSQL, which is imported here alone: a server without such a ledger does not need it.

    Raises:
        ConfigError: psycopg is not installed.
    """
    try:
        package: ModuleType = load("trainer_server.ledger.postgres")
    except ImportError as error:
        message = f"--ledger postgresql://… needs psycopg ({error}): pip install 'art-langgraph[postgres]'"
        raise ConfigError(message) from None
    return package
