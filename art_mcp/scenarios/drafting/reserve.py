"""Which values of arguments are held out from training. The same seed reserves the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.scenarios.observe import leaves

SHARE = 0.2
"""Share of the values of a parameter that are held out."""

FEWEST = 4
"""A parameter with fewer values has none that are held out."""


class Reserve:
    """Values of arguments that never occur in training.

    Of values that are known, a share is reserved for each parameter (`domain`). Of values that are made up, such as
    numbers and new names, a share is reserved by their digest.

    Args:
        seed: Seed of the choice.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._known: dict[str, bool] = {}

    def never(self, values: Iterable[Any]) -> None:
        """Marks values that are not held out, because all tasks have them."""
        self._known |= {canonical(value): False for value in values}

    def domain(self, values: Iterable[Any]) -> None:
        """Reserves a share of the values of a parameter. What an earlier domain has decided stays.

        Args:
            values: The values.
        """
        keys = sorted(
            dict.fromkeys(canonical(value) for value in values if not isinstance(value, bool)), key=self._rank
        )
        target = round(SHARE * len(keys)) if len(keys) >= FEWEST else 0
        count = sum(self._known.get(key, False) for key in keys)
        for key in keys:
            if key not in self._known:
                self._known[key] = count < target
                count += self._known[key]

    def held_out(self, argument: Any) -> set[str]:
        """The values in an argument that are held out, in their canonical form."""
        keys = [canonical(leaf) for _, leaf in leaves(argument) if not isinstance(leaf, bool)]
        return {key for key in keys if self._is_held(key)}

    def _is_held(self, key: str) -> bool:
        decision = self._known.get(key)
        return self._rank(key) < SHARE if decision is None else decision

    def _rank(self, key: str) -> float:
        digest = hashlib.sha256(f"{self._seed} {key}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48
