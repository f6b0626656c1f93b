"""A question about a result, whose answer is a short value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from art_mcp.scenarios.observe import Path

SHORT = 40
"""Characters of a fact, at most: a small model copies it without an error."""

LONG = 64
"""Characters of a value that changes with time, at most: its clock alone is a right answer."""

Asked = Literal["value", "leaf", "count", "first", "last", "contains"]

WEIGHTS: dict[Asked, int] = {"value": 4, "leaf": 4, "count": 1, "first": 1, "last": 1, "contains": 1}
"""How often each is asked. People ask for what has a name, and seldom for the last of a list."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a result.

    Args:
        kind: What is asked.
        head: What is asked for, as a noun phrase: "the author", "the first line". Empty: the result itself.
        value: The right answer as text, as the result has it.
        items: The noun of the entries, in the plural, where they are counted or looked through.
        item: The entry that is looked for.
        path: Where the value is in the result, if it is another one in each run.
        attribute: Whether it is a property of what the call is about: "the price of it-77", not "in the list".
    """

    kind: Asked
    head: str
    value: str
    items: str = ""
    item: str = ""
    path: Path | None = None
    attribute: bool = False

    @property
    def facts(self) -> list[str]:
        """What the answer must mention. Empty: what the run's own result has at `path`."""
        return [] if self.path is not None else [self.value]

    @property
    def key(self) -> tuple[str, str, str]:
        """The same for questions of other results that ask for the same."""
        return self.kind, self.head if self.kind in ("leaf", "first", "last") else "", self.items
