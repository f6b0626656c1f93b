"""Bounds of what records hold that come over HTTP: the first fault ends the reading of a list, and is the only one.

pydantic would list the faults of all entries, and each takes a hundred times the bytes that made it.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MOST_ENTRIES = 10_000
"""Entries of an object whose values have a type: metrics, for example."""
MOST_ROWS = 100_000
"""Records of a request: groups of a step, demonstrations, ids."""
MOST_ANSWER = 64 * 2**20
"""Bytes of rows of the ledger in an answer, but for a single one."""
ANSWER_TOO_LARGE = "answer_too_large"
"""Code of the error where there are more."""

K = TypeVar("K")
V = TypeVar("V")


def _few(value: object) -> object:
    if isinstance(value, dict) and len(value) > MOST_ENTRIES:
        raise ValueError(f"it has {len(value)} entries, more than {MOST_ENTRIES}: send fewer")
    return value


ListOf = Annotated[list[V], Field(fail_fast=True)]
"""A list that is read up to its first fault."""
MapOf = Annotated[dict[K, V], BeforeValidator(_few)]
"""An object of at most MOST_ENTRIES entries."""


class ClosedRecord(BaseModel):
    """A record that has no fields but its own. Of those that it does not know, the first is refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, data: Any) -> Any:
        if not isinstance(data, dict) or len(data) <= len(cls.model_fields):
            return data
        first = next((name for name in data if name not in cls.model_fields), None)
        return {name: value for name, value in data.items() if name in cls.model_fields or name == first}
