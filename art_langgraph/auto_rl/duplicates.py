"""Detects texts that are nearly equal."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ALIKE = 0.8
"""Jaccard similarity of the three-letter pieces from which two texts count as the same."""


class DistinctTexts:
    """A set of texts. Two texts are alike when they have the same numbers and signs between them, and nearly the same
    letters.

    Args:
        texts: The first texts.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._pieces: dict[tuple[str, ...], list[frozenset[str]]] = {}
        for text in texts:
            self.add(text)

    def add(self, text: str) -> bool:
        """Adds a text, unless a text like it is there. Returns whether it was added."""
        plain = " ".join(re.findall(r"\w+", text.casefold()))
        # "17 + 5", "18 + 5" and "17 * 5" are different tasks.
        numbers = tuple(re.findall(r"\d+|(?<=\d) ?[-+*/^%<>=×÷] ?(?=\d)", " ".join(text.split())))
        pieces = frozenset(plain[at : at + 3] for at in range(max(len(plain) - 2, 1)))
        others = self._pieces.setdefault(numbers, [])
        if any(len(pieces & other) >= _ALIKE * len(pieces | other) for other in others):
            return False
        others.append(pieces)
        return True
