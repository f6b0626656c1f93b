"""What could not be read of a file: counted by reason, with the numbers of the lines and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

_MOST_LINES = 5
"""Numbers of lines that a message shows."""


class Unreadable(ValueError):
    """A record or a run that cannot be used.

    Args:
        reason: What is wrong, in words that are the same for all such records, so that they can be counted.
        remedy: What the user can do.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


@dataclass(slots=True)
class _Reason:
    remedy: str
    count: int = 0
    lines: list[int] = field(default_factory=list)


class Skips:
    """What was left out."""

    def __init__(self) -> None:
        self._reasons: dict[str, _Reason] = {}

    def note(self, problem: Unreadable, line: int | None) -> None:
        """Counts something that was left out.

        Args:
            problem: Why.
            line: Number of its line, from 1; None where the file has no lines.
        """
        reason = self._reasons.setdefault(problem.reason, _Reason(problem.remedy))
        reason.count += 1
        if line is not None and len(reason.lines) < _MOST_LINES:
            reason.lines.append(line)

    @property
    def counts(self) -> dict[str, int]:
        """How many were left out, by reason."""
        return {name: reason.count for name, reason in self._reasons.items()}

    def __iter__(self) -> Iterator[str]:
        """A line of text for each reason: how many, in which lines, and the remedy."""
        for name, reason in self._reasons.items():
            where = ""
            if reason.lines:
                more = ", …" if reason.count > len(reason.lines) else ""
                where = f": line{'s' * (reason.count > 1)} {', '.join(map(str, reason.lines))}{more}"
            yield f"{name} ({reason.count}{where})" + (f"; {reason.remedy}" if reason.remedy else "")
