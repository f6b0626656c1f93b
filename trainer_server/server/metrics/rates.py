"""How fast the server answers: completions and tokens of the last minute, by policy."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

SPAN = 60
"""Seconds that are remembered."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a policy answered, per second."""

    completions: float = 0.0
    prompt: float = 0.0
    """Tokens of prompts."""
    sampled_tokens: float = 0.0
    """Sampled tokens."""


class Rates:
    """Counts by the second, for a minute. Any thread may call it.

    Args:
        clock: Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._lock = threading.Lock()
        self._seconds: deque[tuple[int, defaultdict[str | None, list[int]]]] = deque()
        """(second, by policy: completions, tokens of prompts, sampled tokens), oldest first."""
        self.completions: Counter[str | None] = Counter()
        """Completions by policy, since the start of the server."""

    def add(self, policy: str | None, prompt: int, sampled_tokens: int) -> None:
        """Counts a completion.

        Args:
            policy: Who answered; None: the base model.
            prompt: Tokens of the prompt.
            sampled_tokens: Sampled tokens.
        """
        with self._lock:
            self.completions[policy] += 1
            now = int(self._clock())
            if not self._seconds or self._seconds[-1][0] != now:
                self._seconds.append((now, defaultdict(lambda: [0, 0, 0])))
                self._forget(now)
            counted = self._seconds[-1][1][policy]
            for place, value in enumerate((1, prompt, sampled_tokens)):
                counted[place] += value

    def of(self, seconds: int = SPAN) -> dict[str | None, Rate]:
        """The rates of all policies that answered in the last seconds, SPAN at most. Of a server that was started less
        long ago, since its start."""
        with self._lock:
            now = self._clock()
            self._forget(int(now))
            sums: defaultdict[str | None, list[int]] = defaultdict(lambda: [0, 0, 0])
            for second, counted in self._seconds:
                if second > now - seconds:
                    for policy, values in counted.items():
                        sums[policy] = [total + value for total, value in zip(sums[policy], values, strict=True)]
            span = max(1.0, min(float(seconds), now - self._began))
        return {policy: Rate(*(value / span for value in values)) for policy, values in sums.items()}

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0][0] <= now - SPAN:
            self._seconds.popleft()
