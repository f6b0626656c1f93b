"""The autopilot on the real trainer server: its phases, what a kill loses (nothing), and who overrules whom."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import (
    AlarmRules,
    Autopilot,
    CanaryRules,
    HeldOut,
    TrainerClient,
    Trajectory,
    TrajectoryStore,
    autopilot,
)
from art_langgraph.auto_pilot.pilot import _may_pass
from art_langgraph.auto_pilot.settings import share_of
from art_langgraph.auto_pilot.state import Entry, Phase, State
from art_langgraph.auto_pilot.state_store import Journal
from tests.support.runs.deployment import Deployment, alternating, graph
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError, ServerError

Fly = Callable[..., Autopilot]


@pytest.fixture
async def deployed(
    connected: TrainerServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Deployment]:
    name = re.sub(r"\W+", "-", request.node.name)[:60].strip("-")
    async with TrainerClient() as client:
        await client.create_policy(name)
        yield Deployment(name, client, TrajectoryStore(tmp_path / "runs.sqlite"))


@pytest.fixture
def fly(deployed: Deployment) -> Fly:
    """Makes the autopilot of the deployment, as a process that starts does."""

    def made(**settings: Any) -> Autopilot:
        rules = CanaryRules(least=3, most=40, alpha=0.1)
        alarms = AlarmRules(gap=9.0)  # the small engine has other log-probs than the trainer
        settings = {"train_every": 4, "canary": "50%", "rules": rules, "alarms": alarms, **settings}
        return Autopilot(deployed.policy, deployed.client, store=deployed.store, **settings)

    return made


async def until(pilot: Autopilot, event: str) -> list[Entry]:
    """Goes on until something has happened; what happened until then."""
    entries: list[Entry] = []
    while not any(entry.event == event for entry in entries):
        more = await pilot.advance()
        assert more, f"{[str(entry) for entry in entries]}, {pilot.state_store.state()}"
        entries += more
    return entries


async def in_canary(pilot: Autopilot, deployed: Deployment) -> None:
    await until(pilot, "started")
    await deployed.use(4, alternating)
    await until(pilot, "canary")


def likes(version: int) -> Callable[[int, Trajectory], float]:
    """People who like what one version says, and nothing else."""
    return lambda _number, run: float(list(run.versions.values()) == [[version]])


async def decided(pilot: Autopilot, deployed: Deployment, likes: Callable[[int, Trajectory], float]) -> Entry:
    for _ in range(20):
        await deployed.use(4, likes)
        if entries := await pilot.advance():
            return entries[0]
    raise AssertionError(await pilot.status())


@pytest.mark.slow
async def test_a_better_candidate_takes_over_and_the_next_one_is_trained_from_it(
    deployed: Deployment, fly: Fly
) -> None:
    pilot = fly()
    (started,) = await until(pilot, "started")
    assert "@0 was its newest version, and is promoted" in started.reason
    assert "there is no gate (--gate): the canary alone decides" in started.reason
    await deployed.use(3, alternating)
    assert await pilot.advance() == [], "three runs are no four"
    await deployed.use(1, alternating)
    events = [entry.event for entry in await until(pilot, "canary")]
    assert events == ["training", "trained", "gate", "canary"]
    assert {(await deployed.client.policy(deployed.policy)).served} == {0}
    promoted = await decided(pilot, deployed, likes(1))
    assert (promoted.event, promoted.version) == ("promoted", 1)
    assert "it is better (e-value" in promoted.reason
    assert promoted.numbers["candidate"]["successes"] == promoted.numbers["candidate"]["runs"] >= 3
    assert promoted.numbers["taken"] <= 0.5 * promoted.numbers["rollouts"]
    policy = await deployed.client.policy(deployed.policy)
    assert (policy.promoted, policy.candidate) == (1, None)
    await until(pilot, "trained")  # those of the canary are enough for the next one
    versions = await deployed.client.versions(deployed.policy)
    assert [one.made_from for one in versions] == [None, 0, 1]


@pytest.mark.slow
async def test_a_worse_candidate_is_rolled_back_and_the_next_one_is_not_trained_from_it(
    deployed: Deployment, fly: Fly
) -> None:
    pilot = fly()
    await in_canary(pilot, deployed)
    away = await decided(pilot, deployed, likes(0))
    assert (away.event, away.version) == ("rolled_back", 1)
    assert "it is worse" in away.reason
    tried = deployed.versions[4:]
    assert 3 <= tried.count(1) <= 0.5 * len(tried)
    policy = await deployed.client.policy(deployed.policy)
    assert (policy.promoted, policy.candidate, policy.latest) == (0, None, 1)
    await until(pilot, "trained")
    assert (await deployed.client.versions(deployed.policy))[-1].made_from == 0


@pytest.mark.slow
async def test_rollouts_that_got_their_rewards_by_http_count_the_same(deployed: Deployment, fly: Fly) -> None:
    deployed.by_http = True
    pilot = fly(from_ledger=True)
    await in_canary(pilot, deployed)
    promoted = await decided(pilot, deployed, likes(1))
    assert (promoted.event, promoted.version) == ("promoted", 1)


class Killed(Exception):
    """The process ended here."""


async def test_a_kill_before_any_write_loses_nothing(
    deployed: Deployment, fly: Fly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write is lost once, with all that was told to the server before it."""
    write, lost = Journal.write, list[tuple[str, ...]]()

    async def killed(journal: Journal, state: State, *entries: Entry) -> None:
        about = (state.phase, *(entry.event for entry in entries))
        if about not in lost:
            lost.append(about)
            raise Killed(about)
        await write(journal, state, *entries)

    monkeypatch.setattr(Journal, "write", killed)
    for _ in range(60):
        if not deployed.versions and (state := fly().state_store.state()) and state.phase == Phase.collecting:
            await deployed.use(4, alternating)
        try:
            if not await fly().advance():
                await deployed.use(4, likes(1))
        except Killed:
            continue
        history = fly().state_store.history()
        if history and history[-1].event == "promoted":
            break
    assert [entry.event for entry in history] == ["started", "training", "trained", "gate", "canary", "promoted"]
    assert len(lost) == 7, "each of the six, and the verdict before it was carried out"
    policy = await deployed.client.policy(deployed.policy)
    assert (policy.promoted, policy.promotions, policy.latest) == (1, 2, 1)
    jobs = [job for job in await deployed.client.jobs() if (job.policy, job.kind) == (deployed.policy, "step")]
    assert len(jobs) == 1, "the step was sent once"
    assert len(deployed.store.trained(deployed.policy)) == 4
    assert deployed.store.open_steps(deployed.policy) == []


async def test_what_is_promoted_by_hand_stays(deployed: Deployment, fly: Fly) -> None:
    pilot = fly()
    await in_canary(pilot, deployed)
    await deployed.client.promote(deployed.policy, 0)  # the same version: somebody wants it
    abandoned, paused = await pilot.advance()
    assert (abandoned.event, abandoned.version, paused.event) == ("abandoned", 1, "paused")
    assert "was promoted by hand meanwhile" in abandoned.reason
    await deployed.use(8, likes(1))
    assert await fly().advance() == [], "it is paused"
    assert set(deployed.versions[4:]) == {0}
    assert [entry.event for entry in await fly().resume()] == ["resumed"]
    await until(fly(), "trained")
    await deployed.client.promote(deployed.policy, None)
    assert [entry.event for entry in await fly().advance()] == ["abandoned", "paused"]
    assert (await deployed.client.policy(deployed.policy)).promoted is None
    pilot = fly()
    await pilot.resume()
    assert (await pilot.advance())[0].event == "started"
    assert (await deployed.client.policy(deployed.policy)).promoted == 2


async def test_the_gate_keeps_a_worse_candidate_from_everybody(deployed: Deployment, fly: Fly) -> None:
    """Its scenarios are never trained on, whatever form a deployment gives them."""

    def reward(run: Trajectory) -> float:
        return float(run.versions[deployed.policy] == [0])

    gate = HeldOut([f"say held {number}" for number in range(4)])
    settings: dict[str, Any] = {"gate": gate, "graph": graph(deployed.policy), "reward": reward}
    pilot = fly(**settings)
    await until(pilot, "started")
    await deployed.use(3, alternating)
    for question in ("say held 1", {"messages": [{"role": "user", "content": "say held 2"}]}):
        run = await _once(deployed, question)
        deployed.store.score(run.id, 1.0)
    assert await pilot.advance() == [], "runs of the gate do not count"
    await deployed.use(1, alternating)
    gated = (await until(pilot, "gate"))[-1]
    assert "it gains -1.000" in gated.reason
    assert gated.numbers["champion"]["success"] == 1.0
    (away,) = await fly(**settings).advance()
    assert (away.event, away.version) == ("rolled_back", 1)
    assert set(deployed.versions) == {0}


async def _once(deployed: Deployment, question: Any) -> Trajectory:
    from art_langgraph import rollout

    return await rollout(graph(deployed.policy), question, store=deployed.store)


async def test_an_alarm_pauses_until_somebody_goes_on(deployed: Deployment, fly: Fly) -> None:
    settings: dict[str, Any] = {"alarms": AlarmRules(gap=-1.0), "gate": ["say held"]}
    await until(fly(**settings), "started")
    await deployed.use(4, alternating)
    trained, paused = (await until(fly(**settings), "paused"))[-2:]
    assert (trained.event, paused.numbers["cause"]) == ("trained", "sampler_gap")
    assert "art-langgraph doctor" in paused.reason
    assert await fly(**settings).advance() == []
    entries = [entry async for entry in _first(fly(**settings), 3, resume=True)]
    assert [entry.event for entry in entries] == ["resumed", "gate", "canary"], "the same alarm does not pause again"
    assert "the gate's scenarios need a graph (--graph-object) and a reward function" in entries[1].reason


async def _first(pilot: Autopilot, count: int, **options: Any) -> AsyncIterator[Entry]:
    running = pilot.run(**options)
    async for entry in running:
        yield entry
        if (count := count - 1) == 0:
            await running.aclose()  # type: ignore[attr-defined]
            return


async def test_runs_with_equal_rewards_teach_nothing_and_it_waits_for_more(deployed: Deployment, fly: Fly) -> None:
    pilot = fly()
    await until(pilot, "started")
    await deployed.use(4, lambda *_: 1.0)
    skipped = (await until(pilot, "skipped"))[-1]
    assert "nothing to learn from 4 runs" in skipped.reason
    assert await pilot.advance() == [], "the same runs are not tried again alone"
    await deployed.use(4, lambda *_: 0.0)
    trained = (await until(pilot, "trained"))[-1]
    assert trained.numbers["runs"] == 8


async def test_a_candidate_that_somebody_ends_is_abandoned(deployed: Deployment, fly: Fly) -> None:
    pilot = fly()
    await in_canary(pilot, deployed)
    await deployed.client.end_candidate(deployed.policy)
    (abandoned,) = await pilot.advance()
    assert (abandoned.event, "somebody ended its canary" in abandoned.reason) == ("abandoned", True)


async def test_it_is_stopped_by_hand(deployed: Deployment, fly: Fly) -> None:
    pilot = fly()
    assert not await pilot.stop()
    await in_canary(pilot, deployed)
    assert (await pilot.status())["canary"]["candidate"]["version"] == 1
    assert await pilot.stop()
    (away,) = await fly().advance()
    assert (away.event, away.reason) == ("rolled_back", "it was stopped by hand")
    assert (await deployed.client.candidate(deployed.policy)).candidate is None


async def test_one_process_flies_a_policy(deployed: Deployment, fly: Fly) -> None:
    async with fly().state_store.alone():
        with pytest.raises(ConfigError, match="another autopilot"):
            async for _ in autopilot(deployed.policy, deployed.client, store=deployed.store):
                pass


def test_a_server_at_fault_is_asked_again_and_one_that_refuses_is_not() -> None:
    assert all(_may_pass(ServerError("later", status=status)) for status in (429, 500, 502, 503, 507))
    assert not any(_may_pass(ServerError("never", status=status)) for status in (401, 404, 422))
    assert _may_pass(ServerError("promoted", status=409, code="promoted_meanwhile"))


def test_a_share_is_a_percentage_or_a_number() -> None:
    assert [share_of(one) for one in ("10%", "0.1", 0.1)] == [0.1] * 3
    for wrong in ("100%", "0", 1.5, "ten", "%"):
        with pytest.raises(ConfigError, match="no share"):
            share_of(wrong)
