"""A candidate's share of the rollouts: never more than it, by hash, and for each rollout once and for all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.homes.versions import publish
from trainer_server.ledger.canary_assignments import CanaryAssignments
from trainer_server.ledger.sqlite import SQLiteBooks
from trainer_server.policies.canary import Canary, in_canary
from trainer_server.policies.leases import LocalLeases
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Candidate, PolicySpec


class Recorded:
    """A ledger that knows what answered some rollouts."""

    def __init__(self, versions: Mapping[str, int] = {}) -> None:
        self.versions = dict(versions)

    def rollout(self, rollout_id: str) -> list[Any]:
        version = self.versions.get(rollout_id)
        row = SimpleNamespace(policy="agent", model="agent", version=version, created=time.time())
        return [] if version is None else [row]


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    store = AdapterStore(tmp_path / "policies")
    store.register(PolicySpec(name="agent"), "base")
    for number in range(4):
        publish(store, "agent", number)
    store.promote("agent", 1)
    return store


def candidate(store: AdapterStore, share: float = 0.1, version: int = 2) -> Candidate:
    promotions = store.promotions("agent")
    return Candidate(version=version, share=share, since=1.0 + version, beside=1, promotions=promotions)


def server(store: AdapterStore, tried: Candidate | None, ledger: Recorded | None = None) -> Canary:
    """What a server that starts now gives rollouts: it has the files, and no lease."""
    if tried is not None:
        store.try_candidate("agent", tried)
    names = PolicyNames(store)
    names.newest["agent"] = 3
    names.promote("agent", store.promoted_version("agent"))
    names.try_candidate("agent", store.candidate("agent"))
    draws = CanaryAssignments(SQLiteBooks(store.root.parent / "rollouts.sqlite"))
    made: Any = ledger or Recorded()
    return Canary(names=names, leases=LocalLeases(900), draws=draws, ledger=made, store=store)


async def test_a_candidate_never_gets_more_than_its_share(store: AdapterStore) -> None:
    canary = server(store, candidate(store, 0.25))
    given = {}
    for number in range(100):
        given[f"ro-{number}"] = await canary.version("agent", f"ro-{number}")
        drawn, taken = canary.counts("agent")
        assert drawn == number + 1
        assert taken <= 0.25 * drawn
    mine = {rollout for rollout, version in given.items() if version == 2}
    assert 20 <= len(mine) == canary.counts("agent")[1]
    assert mine <= {rollout for rollout in given if in_canary(rollout, "agent@2", 0.25)}
    assert set(given.values()) == {1, 2}


def test_each_candidate_draws_other_rollouts() -> None:
    ids = [f"ro-{number}" for number in range(3000)]
    drawn, others = ({one for one in ids if in_canary(one, name, 0.1)} for name in ("agent@7", "agent@8"))
    assert 240 < len(drawn) < 360
    assert len(drawn & others) < len(drawn) / 3


async def test_a_rollout_keeps_its_version_over_a_restart_and_the_end_of_the_trial(store: AdapterStore) -> None:
    first = server(store, candidate(store, 0.5))
    given = {f"ro-{number}": await first.version("agent", f"ro-{number}") for number in range(40)}
    assert set(given.values()) == {1, 2}
    again = server(store, None)
    assert {one: await again.version("agent", one) for one in given} == given
    assert again.counts("agent") == first.counts("agent")
    store.promote("agent", 3)
    after = server(store, None)
    assert {one: await after.version("agent", one) for one in given} == given
    assert await after.version("agent", "ro-new") == 3


async def test_a_rollout_that_began_before_the_trial_is_not_drawn(store: AdapterStore) -> None:
    begun = Recorded({f"ro-{number}": 0 for number in range(20)})
    canary = server(store, candidate(store, 1.0), begun)
    assert [await canary.version("agent", f"ro-{number}") for number in range(20)] == [0] * 20
    assert canary.counts("agent") == (0, 0)
    assert await canary.version("agent", "ro-new") == 2
    assert await canary.version("agent", None) == 1, "a request without a rollout gets the promoted version"


async def test_a_version_that_is_gone_is_not_served_again(store: AdapterStore) -> None:
    assert await server(store, candidate(store, 1.0)).version("agent", "r") == 2
    store.quarantine("agent", 2, "it is damaged")
    assert await server(store, None).version("agent", "r") == 1


async def test_each_promotion_ends_the_trial_that_of_the_same_version_too(store: AdapterStore) -> None:
    store.try_candidate("agent", candidate(store, 1.0))
    names = PolicyNames(store)
    names.promote("agent", 1)
    names.try_candidate("agent", store.candidate("agent"))
    assert [names.is_named(("agent", number)) for number in range(4)] == [False, True, True, False]
    store.promote("agent", 1)
    names.promote("agent", 1)
    assert (store.candidate("agent"), names.candidates, store.promotions("agent")) == (None, {}, 2)


async def test_a_candidate_in_quarantine_is_tried_no_longer(
    store: AdapterStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.try_candidate("agent", candidate(store))
    names = PolicyNames(store)
    names.promote("agent", 1)
    names.try_candidate("agent", store.candidate("agent"))
    names.quarantine(("agent", 2), "it is damaged")
    assert (store.candidate("agent"), names.candidates) == (None, {})
    assert "agent@2 is no longer tried" in caplog.text
