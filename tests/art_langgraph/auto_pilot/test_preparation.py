"""How runs are chosen for a step, and what ends a step that makes no version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import Scenario, Trajectory, TrajectoryStore
from art_langgraph.auto_pilot.gate import Gate
from art_langgraph.auto_pilot.preparation import Preparation
from art_langgraph.auto_pilot.runs import StoredRuns
from art_langgraph.auto_pilot.settings import AutopilotOptions
from art_langgraph.auto_pilot.state import Phase, State
from art_langgraph.auto_pilot.state_store import Journal, StateStore
from art_langgraph.trajectory import CompletionCall
from trainer_server.wire import ServerError, StepResult

POLICY: Any = None
"""Only alarms after a trained step ask for it."""


class Server:
    """A trainer server whose steps learn nothing, or are refused."""

    def __init__(self, refusal: ServerError | None = None) -> None:
        self.refusal = refusal
        self.before_find: Callable[[], object] = lambda: None

    async def find_step(self, policy: str, key: str) -> None:
        self.before_find()

    async def submit(self, *_args: Any, **_options: Any) -> Any:
        if self.refusal:
            raise self.refusal

    async def result(self, job: Any) -> StepResult:
        return StepResult(version=0, metrics={"skipped": "equal rewards"})


@pytest.fixture
def store(tmp_path: Path) -> TrajectoryStore:
    return TrajectoryStore(tmp_path / "runs.sqlite")


def add(store: TrajectoryStore, count: int) -> None:
    for number in range(count):
        call = CompletionCall(id=f"c{number}", model="p", version=0, message={"content": "x"}, started=0.0)
        scenario = Scenario(input="say x")
        store.add(Trajectory(id=f"run-{number}", scenario=scenario, completions=[call], reward=number % 2))


def prepared(store: TrajectoryStore, server: Any, train_every: int) -> Preparation:
    options = AutopilotOptions("p", server, train_every=train_every)
    journal, run_source = Journal(StateStore(store, "p")), StoredRuns(store)
    return Preparation(options, store, journal, run_source, Gate(options, store))


async def test_steps_that_learn_nothing_come_to_all_runs_and_end(store: TrajectoryStore) -> None:
    add(store, 20)
    preparation, state, given = prepared(store, Server(), 2), State(policy="p", created=1.0), list[set[str]]()
    for _ in range(9):
        await preparation.collect(state)
        if state.phase != Phase.training:
            break
        given.append(set(state.runs))
        await preparation.train(state, POLICY)
    assert [len(ids) for ids in given] == [8, 8, 8], "at most four times as many as are waited for"
    assert len(set.union(*given)) == 20
    assert not given[0] & given[1], "those that no step was given yet come first"
    assert (state.phase, store.trained("p")) == (Phase.collecting, set())


@pytest.mark.parametrize("status", [400, 404, 409, 422])
async def test_a_step_that_is_refused_pauses_and_frees_its_runs(store: TrajectoryStore, status: int) -> None:
    add(store, 4)
    refused = prepared(store, Server(ServerError("no such completion", status=status)), 4)
    state = State(policy="p", created=1.0)
    await refused.collect(state)
    await refused.train(state, POLICY)
    assert state.pause
    assert (state.pause.cause, "no such completion" in state.pause.reason) == ("step_failed", True)
    assert (store.trained("p"), store.open_steps("p")) == (set(), [])
    state.pause = None
    await refused.collect(state)
    assert len(state.runs) == 4, "they count as new"


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_server_that_is_at_fault_is_asked_again(store: TrajectoryStore, status: int) -> None:
    add(store, 4)
    state = State(policy="p", created=1.0)
    faulty = prepared(store, Server(ServerError("try later", status=status)), 4)
    await faulty.collect(state)
    with pytest.raises(ServerError, match="try later"):
        await faulty.train(state, POLICY)
    assert (state.phase, state.pause, len(store.trained("p"))) == (Phase.training, None, 4)


async def test_runs_that_another_step_was_given_meanwhile_are_left_out(store: TrajectoryStore) -> None:
    add(store, 4)
    server = Server(ServerError("try later", status=503))
    server.before_find = lambda: store.begin_step("p", "other", ["run-0", "run-1"])
    state = State(policy="p", created=1.0)
    late = prepared(store, server, 4)
    await late.collect(state)
    with pytest.raises(ServerError):
        await late.train(state, POLICY)
    assert store.begin_step("p", "third", [f"run-{number}" for number in range(4)], again=False) == set()
    store.end_step("p", "other", None)
    assert store.trained("p") == {"run-2", "run-3"}


async def test_the_step_of_a_running_autopilot_is_known(store: TrajectoryStore) -> None:
    states = StateStore(store, "p")
    assert states.step_of_a_running_autopilot() is None
    states.write(State(policy="p", created=1.0, phase=Phase.training, key="k"))
    assert states.step_of_a_running_autopilot() is None, "it is dead"
    async with states.alone():
        assert StateStore(store, "p").step_of_a_running_autopilot() == "k"
