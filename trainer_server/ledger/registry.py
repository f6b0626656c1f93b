"""Ledgers by name, as `serve --ledger` takes them."""

from __future__ import annotations

from trainer_server.ledger.base import Ledger, LedgerFactory
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.wire import Home
from trainer_server.wire.plugins import check_members, factory_named

LEDGERS: dict[str, LedgerFactory] = {"sqlite": lambda home: SQLiteLedger(home.ledger)}
"""Factories of the ledgers in this package. A ledger that is defined elsewhere is named `module:factory`."""


def ledger_factory(name: str) -> LedgerFactory:
    """The function that opens a ledger.

    Args:
        name: A key of LEDGERS, or `module:factory` for a ledger that is defined elsewhere. The module must be
            importable in the server and in the trainer process (installed, or on PYTHONPATH).

    Returns:
        The factory. It raises ConfigError for a ledger that lacks a part of the protocol.

    Raises:
        ConfigError: There is no such ledger, or its module cannot be imported.
    """
    factory = factory_named("--ledger", name, LEDGERS, "opens a ledger")

    def make(home: Home) -> Ledger:
        ledger = factory(home)
        check_members("--ledger", name, ledger, Ledger)
        return ledger

    return make


def open_ledger(name: str, home: Home) -> Ledger:
    """Opens a ledger by its name, for the server whose state lies under `home`. Raises what `ledger_factory` does."""
    return ledger_factory(name)(home)
