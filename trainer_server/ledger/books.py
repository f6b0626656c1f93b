"""The database of the books: registrations and rewards of rollouts, the list of runs, and draws.

The books are written in SQL that SQLite and PostgreSQL share; `?` stands for a value. What differs is here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_AT_ONCE = 500
"""Values in one statement: SQLite limits them."""
_WORD = re.compile(r"([^\W_]+)(\*?)")
_LONGEST = 200
"""Characters of a word that a search looks at: PostgreSQL refuses words of more than 2046 bytes."""
_ACCENTS = re.compile("[\u0300-\u036f]")


class Result(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection to the database."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Result: ...

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> object: ...


class Books(Protocol):
    """The database. Any thread may call it."""

    shared: bool
    """Whether other servers write it too, so that what was read may have changed since."""
    like: str
    """The operator that finds a pattern whatever the case."""
    has_words: str
    """A condition on `runs.number`: the run's text has words. Its value is made by `words`."""

    def words(self, terms: Sequence[tuple[str, bool]]) -> str:
        """The value of `has_words`: all these words, in any order.

        Args:
            terms: Words, at least one, and for each whether any word counts that begins so; see `words_of`.
        """
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """A connection that only reads. Raises LedgerError if the database cannot be read."""
        ...

    def writing(self) -> AbstractContextManager[Connection]:
        """A connection in a transaction, which is durable when the block has ended. There is one at a time, among all
        servers that share the database. Raises LedgerError if the database cannot be written."""
        ...

    def overwrite(self) -> bool:
        """Leaves nothing of what was deleted in the files of the database. Returns whether they were written anew.
        Raises LedgerError."""
        ...

    def close(self) -> None:
        """Frees its resources."""
        ...


def chunks(values: Sequence[T]) -> Iterator[tuple[str, Sequence[T]]]:
    """Values a few at a time, each time with the marks that stand for them in a statement: `?, ?, ?`."""
    for start in range(0, len(values), _AT_ONCE):
        chunk = values[start : start + _AT_ONCE]
        yield ", ".join("?" * len(chunk)), chunk


def words_of(text: str) -> list[tuple[str, bool]]:
    """The words of a text, for a search to which case and accents do not matter; for each, whether `*` follows it."""
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", text))).lower()
    return [(word[:_LONGEST], star == "*") for word, star in _WORD.findall(plain)]
