"""What a policy's name means, and that questions about it change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.homes.versions import publish
from trainer_server.ledger.postgres import postgres_fleet
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Candidate, PolicySpec


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    store = AdapterStore(tmp_path)
    store.register(PolicySpec(name="p"), "base")
    for number in range(3):
        publish(store, "p", number)
    return store


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def damage(store: AdapterStore, version: int) -> None:
    (store.directory("p", version) / "adapter_model.safetensors").write_bytes(b"half")


def test_a_name_means_the_newest_version_in_service(store: AdapterStore) -> None:
    names = PolicyNames(store)
    names.serve(("p", 1))
    names.serve(("p", 0))
    assert names.newest == {"p": 1}
    assert names.is_named(("p", 1))
    assert not names.is_named(("p", 2))
    names.forget("p")
    assert names.newest == {}


def test_questions_about_a_broken_version_change_nothing(store: AdapterStore) -> None:
    names = PolicyNames(store)
    names.serve(("p", 2))
    for number in (1, 2):
        damage(store, number)
    before = files(store.root)
    assert "damaged" in str(names.problem(("p", 2)))
    assert names.problem(("p", 0)) is None
    assert list(store.broken_newest("p")) == [2, 1]
    assert files(store.root) == before
    assert names.newest == {"p": 2}
    assert store.versions("p") == [0, 1, 2]


def test_quarantine_of_what_a_name_means_steps_back(store: AdapterStore) -> None:
    names = PolicyNames(store)
    names.serve(("p", 2))
    told = names.quarantine(("p", 2), "it is damaged")
    assert "goes on from p@1" in told
    assert names.newest == {"p": 1}
    assert names.quarantine(("p", 2), "asked again") == told
    assert store.quarantine_reasons("p") == {2: told}
    for number in (1, 0):
        names.quarantine(("p", number), "it is damaged")
    assert names.newest == {}


def test_a_request_for_an_old_broken_version_quarantines_nothing(store: AdapterStore) -> None:
    names = PolicyNames(store)
    names.serve(("p", 2))
    assert "p@1 cannot be served: half" in names.refuse(("p", 1), "half")
    assert store.quarantine_reasons("p") == {}
    assert "quarantined" in names.refuse(("p", 2), "half")
    assert list(store.quarantine_reasons("p")) == [2]


def test_a_promoted_version_is_what_the_name_means(store: AdapterStore) -> None:
    names = PolicyNames(store)
    names.serve(("p", 2))
    names.promote("p", 1)
    assert (names.newest, names.promoted_versions) == ({"p": 2}, {"p": 1})
    assert [names.is_named(("p", number)) for number in range(3)] == [False, True, True]
    names.promote("p", None)
    assert names.promoted_versions == {}


def test_a_promoted_version_that_is_damaged_is_promoted_no_longer(
    store: AdapterStore, caplog: pytest.LogCaptureFixture
) -> None:
    names = PolicyNames(store)
    names.serve(("p", 2))
    store.promote("p", 1)
    names.promote("p", 1)
    assert "quarantined" in names.refuse(("p", 1), "half")
    assert (names.newest, names.promoted_versions, store.promoted_version("p")) == ({"p": 2}, {}, None)
    assert "p@1 was promoted; 'p' means the newest version now" in caplog.text


async def test_gateways_learn_what_the_server_that_trains_decides(store: AdapterStore, postgres_url: str) -> None:
    fleets = [postgres_fleet(postgres_url) for _ in range(2)]
    trainer = PolicyNames(store, fleets[0].pins)
    other = PolicyNames(store, fleets[1].pins, trains=False)
    trainer.serve(("agent", 1))
    trainer.serve(("agent", 3))
    trainer.promote("agent", 1)
    trainer.try_candidate("agent", Candidate(version=3, share=0.5, since=1.0, beside=1, promotions=1))
    trainer.withhold("old", "it was trained on another model")
    await trainer.announce()
    await other.refresh("agent")
    assert other.meaning("agent") == trainer.meaning("agent")
    assert other.unserved_policies == {}
    await other.refresh()
    assert other.unserved_policies == trainer.unserved_policies
    trainer.withhold("old", None)
    trainer.promote("agent", None)
    await trainer.announce()
    await other.refresh()
    assert (other.resolve("agent"), other.unserved_policies, other.trial_policies) == (3, {}, {"agent"})
    other.serve(("agent", 9))
    await other.announce()  # it does not train: nobody is told
    assert '"newest": 3' in str(await fleets[0].pins.meaning("agent"))
    restarted = PolicyNames(store, fleets[0].pins)
    restarted.serve(("new", 2))
    await restarted.announce_all()
    await other.refresh()
    assert (other.resolve("agent"), other.resolve("new")) == (None, 2)
    for fleet in fleets:
        await fleet.gateways.leave()


class Pins:
    """What servers tell one another, without a database. It notes which names were asked and published."""

    def __init__(self, **meanings: str) -> None:
        self.told: dict[str, str] = meanings
        self.asked: list[str] = []
        self.published: list[str] = []

    async def meaning(self, policy: str) -> str | None:
        self.asked.append(policy)
        return self.told.get(policy)

    async def meanings(self) -> dict[str, str]:
        return self.told

    async def publish(self, meanings: dict[str, str | None]) -> None:
        self.published += meanings


async def test_a_gateway_keeps_no_names_of_requests(store: AdapterStore) -> None:
    pins = Pins(agent='{"newest": 3, "promoted": null, "candidate": null, "unserved": null}')
    names = PolicyNames(store, cast(Any, pins), trains=False)
    for asked in ("agent", "unknown", "a\0b", "../x", "", "x" * 10_000):
        await names.refresh(asked)
    assert names.newest == {"agent": 3}
    assert pins.asked == ["agent", "unknown"], "what cannot be a policy's name is not asked"
    assert names._changed == set()
    await PolicyNames(store, cast(Any, pins)).announce_all()
    assert pins.published == ["agent"]
