"""What an observer is, and which there are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

LONGEST = 300
"""Characters of a value that is kept as it is. Of a longer one the beginning is kept, with its length and digest."""


LONGEST_TEXT = 64_000
"""Characters of a text that is known line by line, at most."""


class LongText(str):
    """A value that is cut.

    Attributes:
        text: All of it.
    """

    text: str

    def __new__(cls, value: str, text: str) -> LongText:
        long = super().__new__(cls, value)
        long.text = text
        return long


class Unread(str):
    """A value in the place of what was not read, or not one by one: it says why, or what is known of all.

    Args:
        text: What it says.
        start: How the names begin that the values would have. They are no change where only the other state has them.
            None: there is one value, of this name.

    Attributes:
        mark: Differs between two states in which the values may differ.
    """

    start: str | None
    mark: str

    def __new__(cls, text: str, start: str | None = None, mark: str = "") -> Unread:
        value = super().__new__(cls, text)
        value.start, value.mark = start, mark
        return value


Show = Callable[[str | bytes], str]
"""Makes a value of a text or of bytes: with aliases instead of the copy's paths, and cut. Equal values are equal."""


class Observer(Protocol):
    """Says what is in one kind of file or directory. The values of two copies are equal if nobody would see a
    difference: no times, no numbers that depend on the time.

    An observer of your own goes to `connect(…, observers=[…])`, and comes before those that are included.
    """

    def claims(self, path: Path) -> bool:
        """Whether it observes a file or directory. Nobody else then looks at it, or at what is in it."""
        ...

    def files(self, path: Path) -> Iterable[Path]:
        """The files on which the observation depends. If none of them was written, `observe` is not called again."""
        ...

    def observe(self, path: Path, before: Path, show: Show) -> Mapping[str, str]:
        """Reads a file or directory that it claims.

        Args:
            path: The file or directory in a copy. It is not written.
            before: The same one as it was before any run. It may be missing, and may be `path` itself.
            show: Makes values.

        Returns:
            Values by their names. Names say to a person what they are of: `branch main`, `users[id=3].name`.

        Raises:
            OSError, ValueError: It cannot be read. A run may have broken it; the observation then says so.
        """
        ...


def render_value(data: str | bytes, translate: Callable[[str], str] = str) -> str:
    """The value of a text or of bytes.

    Args:
        data: The text. Bytes that are UTF-8 and have no NUL are a text; others are known by their digest.
        translate: Changes the text first.
    """
    if isinstance(data, bytes):
        if not data:
            return "empty"
        try:
            text = "\0" if b"\0" in data else data.decode()
        except UnicodeDecodeError:
            text = "\0"
        if text == "\0":
            return f"{len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()[:32]}"
        data = text
    data = translate(data).encode(errors="replace").decode()  # what is no Unicode cannot be stored
    if len(data) <= LONGEST:
        return data
    digest = hashlib.sha256(data.encode()).hexdigest()[:32]
    value = f"{data[: LONGEST // 2]} … ({len(data):,} characters, sha256 {digest})"
    return LongText(value, data) if len(data) <= LONGEST_TEXT else value
