"""The canary of a candidate that began with other settings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art_langgraph import TrajectoryStore
from art_langgraph.auto_pilot.runs import StoredRuns
from art_langgraph.auto_pilot.settings import AutopilotOptions
from art_langgraph.auto_pilot.state import Phase, State
from art_langgraph.auto_pilot.state_store import Journal, StateStore
from art_langgraph.auto_pilot.trial import Trial
from trainer_server.wire import CanaryCounts, Candidate


class Server:
    """A trainer server that serves a candidate to a tenth of the rollouts."""

    async def candidate(self, policy: str) -> CanaryCounts:
        return CanaryCounts(candidate=Candidate(version=1, share=0.1, since=5.0, beside=0, promotions=1))


@pytest.mark.parametrize(("share", "said"), [(0.2, 1), (0.1, 0)])
async def test_another_share_than_that_of_the_canary_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, share: float, said: int
) -> None:
    store, server, policy = TrajectoryStore(tmp_path / "runs.sqlite"), Server(), SimpleNamespace(promoted=0)
    any_server: Any = server
    any_policy: Any = policy
    options = AutopilotOptions("p", any_server, canary=share)
    trial = Trial(options, journal=Journal(StateStore(store, "p")), run_source=StoredRuns(store))
    state = State(policy="p", created=1.0, phase=Phase.canary, candidate=1, since=5.0)
    for _ in range(3):
        await trial.compare(state, any_policy)
    assert state.phase == Phase.canary
    assert caplog.text.count("p@1 keeps the share of 10% that its canary began with: the share of 20%") == said
