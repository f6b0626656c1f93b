"""A change of a world: what was there before a run, and what after it. Comparison of the changes of two runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from art_mcp.worlds.edit import NAMED_TIME, VARYING, Edit

_DIGITS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8,}|\d+")
"""Numbers, hashes and UUIDs: of a time, an id, the name of a backup."""

_DIGEST = re.compile(r"[\d,]+ \w+, sha256 [0-9a-f]+")
"""Of the content of a file that is no text, or of many rows."""

CUT = re.compile(r" … \([\d,]+ characters, sha256 [0-9a-f]+\)$|^[\d,]+ rows, sha256 [0-9a-f]+$")
"""The end of a long text, or many rows, as an observer shows them."""

_WORD = re.compile(r"[^\W\d_]{3}")

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
        digits_vary: Whether it was at another place each time, such as a row with a random id, or a backup with the
            time in its name: numbers and hashes in `where` and `what` can be others. If it `varies` too, so can those
            in `after`, and nothing else there.
        loose: Which of the numbers and hashes in `after`, counted from 0, can be others, if it varies and nothing else
            there does: those of the time in a document. Empty: all of it can be another.
        edit: What was edited in a long text, which `after` has not in full. Of a reference it is there if the text
            varies: what can be another is in its lines, and nowhere else.
    """

    model_config = ConfigDict(extra="forbid")

    where: str
    what: str
    before: str | None = None
    after: str | None = None
    varies: bool = False
    digits_vary: bool = False
    loose: tuple[int, ...] = ()
    edit: Edit | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What was changed."""
        return self.where, self.what

    @property
    def place(self) -> tuple[str, str]:
        """The same for each run."""
        return _without_digits(self) if self.digits_vary else self.key

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
    loose = {change.place for change in reference_changes if change.digits_vary}
    reference, actual = _by_place(reference_changes, loose), _by_place(run_changes, loose)
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
    place each time, and differs in its digits alone, is kept beside others, such as a backup beside what was changed,
    or by itself, if it has a random id and some of its values are the same.

    Returns:
        The changes. None: the executions changed different things, or only times, so that nothing can be expected of a
        third one.
    """
    if len(first) != len(second):
        return None
    common = {change.key for change in first} & {change.key for change in second}
    loose = {_without_digits(change) for change in first if change.key not in common}
    others = _by_place(second, loose)
    changes = []
    for place, change in _by_place(first, loose).items():
        other = others.get(place)
        if other is None or ((change.after is None) is not (other.after is None)):
            return None
        same, moved = change.after == other.after, change.key not in common
        if moved and _mask_text(change) != _mask_text(other):
            return None
        edit = None if same else _merge_edits(change, other, moved)
        digits = () if same else _loose_digits(change.after or "", other.after or "")
        marks = {"varies": not same, "digits_vary": moved, "loose": digits, "edit": edit}
        changes.append(change.model_copy(update=marks))
    if changes and not any(map(_is_known, changes)):
        return None
    return changes


def _by_place(changes: Sequence[Change], loose: Container[tuple[str, str]]) -> dict[tuple[str, str, int], Change]:
    """The changes by their places. Those at one of the loose places, whose digits do not count, are numbered in the
    order of their values."""
    counts: Counter[tuple[str, str]] = Counter()
    result = {}
    places = [place if (place := _without_digits(change)) in loose else change.key for change in changes]
    pairs = zip(places, changes, strict=True)
    for place, change in sorted(pairs, key=lambda each: _mask_text(each[1]) if each[0] in loose else ""):
        counts[place] += 1
        result[*place, counts[place]] = change
    return result


def _is_known(change: Change) -> bool:
    """Whether a change is known by its place, or by its value and a hash or UUID in its place: a number alone may be a
    time, of a backup, or in a log. A document in which only a time changes is not, nor a long text, or many rows, in
    which nobody knows what varies."""
    is_text = change.varies and (change.edit is not None or CUT.search(change.after or "") is not None)
    if is_text:
        stays = change.edit is not None and change.edit.is_known
    else:
        stays = not change.varies or bool(change.loose and _WORD.search(_mask_digits(change.after or "")))
    if change.digits_vary:
        places = _DIGITS.finditer(f"{change.where} {change.what}")
        return stays and any(not match[0].isdigit() for match in places)
    if is_text:
        return stays
    differing = _differing_digits(change.before or "", change.after or "")
    return not (stays and change.varies and differing and set(differing) <= set(change.loose))


def _merge_edits(first: Change, second: Change, moved: bool) -> Edit | None:
    """What both edited in a text, if more is known of it than which numbers vary. moved: it is at another place each
    time."""
    edit, other = _edit(first), _edit(second)
    merged = edit.merge(other) if edit and other else None
    if merged is None or first.edit or second.edit:
        return merged
    numbers = moved or _loose_digits(first.after or "", second.after or "")
    return merged if merged.is_known and not numbers else None


def _edit(change: Change) -> Edit | None:
    """What was edited in a text. None: it is not known in full."""
    values = change.before or "", change.after or ""
    is_cut = any(CUT.search(value) or _DIGEST.fullmatch(value) for value in values)
    return change.edit or (None if is_cut else Edit.between(*values))


def _differing_digits(first: str, second: str) -> list[int]:
    """Which numbers and hashes of two texts differ. Empty: none, or something else does."""
    if _mask_digits(first) != _mask_digits(second):
        return []
    pairs = zip(_DIGITS.findall(first), _DIGITS.findall(second), strict=True)
    return [at for at, (mine, other) in enumerate(pairs) if mine != other]


def _loose_digits(first: str, second: str) -> tuple[int, ...]:
    """Which numbers and hashes may be others when two texts differ in some alone: these, and those beside them, as the
    hour beside the second. Empty: the texts differ otherwise, or may on another day, which they name."""
    loose = set(_differing_digits(first, second))
    if NAMED_TIME & set(re.findall(r"[a-z]+", first.casefold())) or _DIGEST.fullmatch(first) or CUT.search(first):
        return ()
    spans = [match.span() for match in _DIGITS.finditer(first)]
    beside = [
        len(gap := first[left[1] : right[0]]) <= 2 and not gap.strip("T").isalpha() for left, right in pairwise(spans)
    ]
    for order in (range(len(beside)), reversed(range(len(beside)))):
        for at in order:
            if beside[at] and loose & {at, at + 1}:
                loose |= {at, at + 1}
    return tuple(sorted(loose))


def _without_digits(change: Change) -> tuple[str, str]:
    return _mask_digits(change.where), _mask_digits(change.what)


def _mask_digits(text: str) -> str:
    """A text without its numbers and hashes."""
    return _DIGITS.sub("#", text)


def _mask_text(change: Change) -> str:
    """The text after a run without its numbers and hashes."""
    return _mask_digits("\n".join(change.edit.new).replace(VARYING, "0") if change.edit else change.after or "")


def _as_expected(want: Change, got: Change) -> bool:
    """Whether a change is as the reference has it."""
    if want.after == got.after:
        return True
    if None in (want.after, got.after):
        return False
    if want.varies and want.edit:
        edit = _edit(got)
        return edit is not None and want.edit.covers(edit)
    if not want.varies or (want.digits_vary and _mask_digits(want.after or "") != _mask_digits(got.after or "")):
        return False
    differing = _differing_digits(want.after or "", got.after or "")
    return not want.loose or bool(differing and set(differing) <= set(want.loose))


def _value_text(change: Change) -> str:
    return "gone" if change.after is None else change.after
