"""A change of a world: what was there before a run, and what after it. Comparison of the changes of two runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

_DIGITS = re.compile(r"[0-9a-f]{8,}|\d+")
"""Numbers and hashes: of a time, an id, the name of a backup."""

MAX_CHANGES = 8
"""Differences that are put into words at most; the rest is counted."""


class Change(BaseModel):
    """Something in a world that a run made, changed or removed.

    Args:
        where: The file or directory, as the model knows it: `/world/repo`.
        what: What of it: `content`, `branch main`, `users[id=3].name`.
        before: Its value before the run. None: it was not there.
        after: Its value after the run. None: it is not there. The same as before: it was not read, and may be another.
        varies: Whether the value after the run was another one each time, such as a time: only that it changes can be
            expected.
        digits_vary: Whether it was at another place each time, such as a backup with the time in its name: numbers and
            hashes in `where`, `what` and `after` can be others.
    """

    model_config = ConfigDict(extra="forbid")

    where: str
    what: str
    before: str | None = None
    after: str | None = None
    varies: bool = False
    digits_vary: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """What was changed."""
        return self.where, self.what

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.where}: {self.what} is new: {self.after}"
        if self.after is None:
            return f"{self.where}: {self.what} is gone; it was {self.before}"
        if self.before == self.after:  # it was not read
            return f"{self.where}: {self.what} may have changed: {self.after}"
        return f"{self.where}: {self.what} was {self.before} and is now {self.after}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a run changed, beside what it should have changed.

    Args:
        degree: Number of changes that are as expected, divided by the number of changes that were expected or made.
            1.0: all that should have changed did, and nothing else.
        differences: Each difference in a sentence.
    """

    degree: float
    differences: list[str]


def compare(reference_changes: Sequence[Change], run_changes: Sequence[Change]) -> Comparison:
    """Compares the changes of a run with those of the reference. Without any changes the degree is 1.0."""
    reference = {_key(change): change for change in reference_changes}
    loose = {key for key, change in reference.items() if change.digits_vary}
    actual = {key if (key := _without_digits(change)) in loose else change.key: change for change in run_changes}
    differences = []
    right = 0
    for key in [*reference, *(key for key in actual if key not in reference)]:
        want, got = reference.get(key), actual.get(key)
        if want and got and _as_expected(want, got):
            right += 1
        elif want is None:
            differences.append(f"should not have changed: {got}")
        elif got is None:
            differences.append(f"should have changed and did not: {want}")
        else:
            differences.append(
                f"{want.where}: {want.what} should now be {_value_text(want)}, but is {_value_text(got)}"
            )
    if len(differences) > MAX_CHANGES:
        differences = [*differences[:MAX_CHANGES], f"and {len(differences) - MAX_CHANGES} more differences"]
    whole = len(reference.keys() | actual.keys())
    return Comparison(right / whole if whole else 1.0, differences)


def merge_changes(first: Sequence[Change], second: Sequence[Change]) -> list[Change] | None:
    """The changes of two executions of the same calls. Values that differ are marked as varying. What is at another
    place each time, and differs in its digits alone, is kept beside others: a backup beside what was changed.

    Returns:
        The changes. None: the executions changed different things, so that nothing can be expected of a third one.
    """
    others = {change.key: change for change in second}
    loose = {_without_digits(change): change for change in second}
    if len(others) != len(first):
        return None
    changes = []
    for change in first:
        other = others.get(change.key) or loose.get(_without_digits(change))
        if other is None or ((change.after is None) is not (other.after is None)):
            return None
        if change.key == other.key:
            varies = change.after != other.after
            changes.append(change.model_copy(update={"varies": True}) if varies else change)
        elif _mask_digits(change.after or "") == _mask_digits(other.after or ""):
            changes.append(change.model_copy(update={"digits_vary": True}))
        else:
            return None
    if changes and all(change.digits_vary for change in changes):
        return None  # nothing was changed that has a place of its own
    return changes


def _key(change: Change) -> tuple[str, str]:
    """What was changed, as the changes of a run are looked up by it."""
    return _without_digits(change) if change.digits_vary else change.key


def _without_digits(change: Change) -> tuple[str, str]:
    return _mask_digits(change.where), _mask_digits(change.what)


def _mask_digits(text: str) -> str:
    """A text without its numbers and hashes."""
    return _DIGITS.sub("#", text)


def _as_expected(want: Change, got: Change) -> bool:
    """Whether a change is as the reference has it."""
    if want.after == got.after:
        return True
    if None in (want.after, got.after):
        return False
    return want.varies or (want.digits_vary and _mask_digits(want.after or "") == _mask_digits(got.after or ""))


def _value_text(change: Change) -> str:
    return "gone" if change.after is None else change.after
