"""Values for arguments that a user gives, by the name of a parameter: in memory or in files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from art_mcp.client.effects import words
from trainer_server.wire import ConfigError

Tables = Mapping[str, Sequence[Any]]
"""Values by the name of a parameter."""

Resources = Tables | str | Path | Sequence[str | Path]
"""Tables, or the path of a file with tables, or several paths (see `load_tables`)."""


def tables_of(resources: Resources | None) -> dict[str, list[Any]]:
    """The tables in `resources`, read from files if necessary.

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
        *sources: Paths of files. A JSON file maps names of parameters to lists of values. Any other file is a text with
            one value per line, for the parameter that the file is named after. `NAME=FILE` names another parameter.

    Returns:
        The values by the name of a parameter.

    Raises:
        ConfigError: A file cannot be read, has a wrong format, or has no values.
    """
    tables: dict[str, list[Any]] = {}
    for source in sources:
        name, _, path = str(source).rpartition("=")
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(f"the table {path} cannot be read: {reason}") from None
        if file.suffix != ".json":
            lines = [line.strip() for line in text.split("\n")]
            tables[name or file.stem] = [line for line in lines if line and not line.startswith("#")]
            continue
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the table {path} is no JSON: {error}") from None
        content = {name: content} if name and isinstance(content, list) else content
        if not isinstance(content, dict) or not all(isinstance(values, list) for values in content.values()):
            raise ConfigError(f"the table {path} must map names of parameters to lists of values")
        tables |= content
    for name, values in tables.items():
        if not values:
            raise ConfigError(f"the table of {name!r} has no values")
    return tables


def fits_table(parameter: str, table: str) -> bool:
    """Whether a table is for a parameter: their names are equal, or the parameter's name ends with the table's words.

    The table `timezone` is for `timezone` and for `source_timezone`.
    """
    suffix, have = words(table), words(parameter)
    return parameter.casefold() == table or (bool(suffix) and have[-len(suffix) :] == suffix)
