"""Which texts say nearly the same."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ALIKE = 0.8
"""Share of common three-letter pieces (Jaccard) from which two texts count as the same."""


class Seen:
    """Texts that were met. Two are alike when they have the same numbers and nearly the same letters."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._pieces: dict[tuple[str, ...], list[frozenset[str]]] = {}
        for text in texts:
            self.add(text)

    def add(self, text: str) -> bool:
        """Whether the text is new; then it is remembered."""
        plain = " ".join(re.findall(r"\w+", text.casefold()))
        numbers = tuple(re.findall(r"\d+", plain))  # "17 + 5" and "18 + 5" are different tasks
        pieces = frozenset(plain[at : at + 3] for at in range(max(len(plain) - 2, 1)))
        known = self._pieces.setdefault(numbers, [])
        if any(len(pieces & other) >= _ALIKE * len(pieces | other) for other in known):
            return False
        known.append(pieces)
        return True
