"""Ledgers by name, as `serve --ledger` takes them."""

from __future__ import annotations

from importlib import import_module

from trainer_server.ledger.base import Ledger, LedgerFactory
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.wire import ConfigError, Home

LEDGERS: dict[str, LedgerFactory] = {"sqlite": lambda home: SQLiteLedger(home.ledger)}
"""Factories of the ledgers in this package. A ledger that is defined elsewhere is named `module:factory`."""


def open_ledger(name: str, home: Home) -> Ledger:
    """Opens a ledger.

    Args:
        name: A key of LEDGERS, or `module:factory` for a ledger that is defined elsewhere. The module must be
            importable in the server and in the trainer process (installed, or on PYTHONPATH).
        home: Where the server keeps its state.

    Raises:
        ConfigError: There is no such ledger, or its module cannot be imported.
    """
    if name in LEDGERS:
        return LEDGERS[name](home)
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        known = ", ".join(sorted(LEDGERS))
        raise ConfigError(f"--ledger {name}: the ledgers are {known}; name another one as module:factory")
    try:
        factory = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise ConfigError(f"--ledger {name}: {module} cannot be imported: {error}") from None
    if not callable(factory):
        raise ConfigError(f"--ledger {name}: {module} has no function {attribute!r} that opens a ledger")
    ledger: Ledger = factory(home)
    return ledger
