"""Schema numbers of JSON files: the field `schema` of the object in the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trainer_server.wire.errors import NewerSchema

RecordMigration = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes the record of one number of the record of the number before."""

_FIELD = "schema"


class RecordSchema:
    """The form of JSON files that do not change once they are written: an earlier form is changed when it is read.

    A record with the number n has had the first n changes. Records of the first release have no number (0). To change
    the form, add a migration at the end; never change one that was released.

    Args:
        *migrations: The changes, oldest first.
    """

    def __init__(self, *migrations: RecordMigration) -> None:
        self._migrations = migrations

    @property
    def number(self) -> int:
        """The number of this release."""
        return len(self._migrations)

    def to_text(self, record: BaseModel) -> str:
        """A record with its number, as JSON."""
        return json.dumps({_FIELD: self.number, **json.loads(record.model_dump_json())}, indent=2)

    def from_text(self, text: str, path: Path) -> dict[str, Any]:
        """The record of a file, in the form of this release.

        Args:
            text: Content of the file.
            path: The file, for messages.

        Raises:
            NewerSchema: A newer release wrote the file.
            ValueError: The text is no JSON object, or its number is none.
        """
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError("it is no JSON object")
        record: dict[str, Any] = given
        schema = record.pop(_FIELD, 0)
        if not isinstance(schema, int) or schema < 0:
            raise ValueError(f"its schema is {schema!r}, which is no number")
        if schema > self.number:
            raise NewerSchema(path, schema, self.number)
        for migration in self._migrations[schema:]:
            record = migration(record)
        return record
