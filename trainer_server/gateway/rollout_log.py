"""What rollouts asked for lately, so that a client can check a rollout whose calls another process made."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from trainer_server.wire import RolloutCalls


class RolloutLog:
    """Remembers the calls of each rollout for `seconds` from its last call.

    Args:
        seconds: How long.
        clock: Gives the time, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._rollouts: OrderedDict[str, tuple[RolloutCalls, float]] = OrderedDict()
        """By rollout: its calls, and when they are forgotten. The rollout that called last stands last."""

    def note(self, rollout: str, policy: str | None, version: int | None, temperature: float) -> None:
        """A rollout calls a version of a policy, or the base model (None), at a temperature."""
        calls = self.calls(rollout)
        calls.calls += 1
        if policy is not None and version is not None:
            calls.versions[policy] = sorted({*calls.versions.get(policy, ()), version})
        calls.temperatures = sorted({*calls.temperatures, temperature})
        self._rollouts[rollout] = (calls, self._clock() + self._seconds)
        self._rollouts.move_to_end(rollout)

    def calls(self, rollout: str) -> RolloutCalls:
        """The calls of a rollout; those of an unknown one are none."""
        now = self._clock()
        while self._rollouts and next(iter(self._rollouts.values()))[1] < now:
            self._rollouts.popitem(last=False)
        calls, _ = self._rollouts.get(rollout, (None, 0.0))
        return calls or RolloutCalls()
