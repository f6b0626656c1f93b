"""Values for arguments that a user gives: by the name of a parameter, from memory or from files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from art_mcp.scenarios.catalog import words
from trainer_server.wire import ConfigError

Tables = Mapping[str, Sequence[Any]]
"""Values by the name of a parameter."""

Resources = Tables | str | Path | Sequence[str | Path]
"""Tables, or a file of them, or several files (see `load_tables`)."""


def tables_of(resources: Resources | None) -> dict[str, list[Any]]:
    """Reads `resources` wherever they are.

    Args:
        resources: Tables, or paths of files that `load_tables` reads. None gives no tables.

    Raises:
        ConfigError: A file cannot be read or has no values.
    """
    if resources is None:
        return {}
    if isinstance(resources, str | Path):
        return load_tables(resources)
    if isinstance(resources, Sequence):
        return load_tables(*resources)
    return {name: list(values) for name, values in resources.items()}


def load_tables(*sources: str | Path) -> dict[str, list[Any]]:
    """Reads values by the name of a parameter.

    Args:
        *sources: Files: JSON that maps names of parameters to lists, or text with one value a line for the parameter
            that the file is called after. `NAME=FILE` names another parameter.

    Raises:
        ConfigError: A file cannot be read, has another form, or has no values.
    """
    tables: dict[str, list[Any]] = {}
    for source in sources:
        name, _, path = str(source).rpartition("=")
        file = Path(path)
        try:
            text = file.read_text()
        except OSError as error:
            raise ConfigError(f"the table {path} cannot be read: {error.strerror}") from None
        if file.suffix != ".json":
            lines = [line.strip() for line in text.splitlines()]
            tables[name or file.stem] = [line for line in lines if line and not line.startswith("#")]
            continue
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the table {path} is no JSON: {error}") from None
        found = {name: found} if name and isinstance(found, list) else found
        if not isinstance(found, dict) or not all(isinstance(one, list) for one in found.values()):
            raise ConfigError(f"the table {path} must map names of parameters to lists of values")
        tables |= found
    for name, values in tables.items():
        if not values:
            raise ConfigError(f"the table of {name!r} has no values")
    return tables


def fits_table(parameter: str, table: str) -> bool:
    """`timezone` is for `source_timezone` too."""
    wanted, have = words(table), words(parameter)
    return parameter.casefold() == table or (bool(wanted) and have[-len(wanted) :] == wanted)
