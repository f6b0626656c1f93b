"""Held-out scenarios, which are never trained on, and evaluations of versions on them, once for each version."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from art_langgraph.datasets import load_scenarios
from art_langgraph.loop.evaluate import Evaluation, Success, full_reward
from art_langgraph.loop.rollout import ScenarioLike
from art_langgraph.messages import normalised_input
from art_langgraph.rewards import RewardFunction
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, scenario_id
from trainer_server.wire import ConfigError, Policy

log = logging.getLogger("art_langgraph")


_MOST_NAMES = 5
"""Scenarios that an error names, at most."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out scenarios, and how they are measured.

    Args:
        scenarios: The tasks, or a JSONL file of them (`load_scenarios`). None of them may be trained on.
        reward: Scores a run; None: the reward of the training.
        success: Whether a scored run solved its scenario; by default a reward of at least 1.
        n: Runs of each scenario. More scenarios tell more than more runs of the same ones; see `Evaluation`.
        temperature: Sampling temperature of the policies, over what the graph hard-codes; None: the graph's.
    """

    scenarios: Sequence[ScenarioLike] | str | Path
    reward: RewardFunction | None = None
    success: Success = full_reward
    n: int = 1
    temperature: float | None = 0.0

    @classmethod
    def of(cls, held_out: HeldOut | Sequence[ScenarioLike] | str | Path) -> HeldOut:
        """Held-out scenarios with the defaults; a HeldOut is returned as it is."""
        return held_out if isinstance(held_out, HeldOut) else cls(held_out)

    def resolve_scenarios(self, training: Iterable[Scenario]) -> list[Scenario]:
        """The held-out scenarios.

        Args:
            training: The scenarios that are trained on.

        Raises:
            ConfigError: There are none, or some are trained on too; the message names them. Or the file cannot be read.
        """
        tasks = self.scenarios
        scenarios = Scenario.each(load_scenarios(tasks) if isinstance(tasks, (str, Path)) else tasks)
        if not scenarios:
            raise ConfigError("held_out has no scenarios: give some that are not trained on, or leave it out")
        if self.n < 1:
            raise ConfigError(f"held_out: n={self.n} must be at least 1")
        if common := overlap(scenarios, list(training)):
            names = ", ".join(f"{scenario.id!r} ({scenario.input!r:.60})" for scenario in common[:_MOST_NAMES])
            rest = f" and {len(common) - _MOST_NAMES} more" if len(common) > _MOST_NAMES else ""
            raise ConfigError(
                f"{len(common)} of {len(scenarios)} held-out scenarios are trained on too, so that their success would "
                f"tell nothing of new tasks: {names}{rest}. Take them out of one of the two"
            )
        return scenarios

    def resolve(self, training: Iterable[Scenario], reward: RewardFunction | None) -> HeldOut:
        """The same with its scenarios read, and with the reward of the training where it has none of its own.

        Args:
            training: The scenarios that are trained on.
            reward: Of the training.

        Raises:
            ConfigError: As `resolve_scenarios`.
        """
        return replace(self, scenarios=self.resolve_scenarios(training), reward=self.reward or reward)


def input_id(scenario: Scenario) -> str:
    """A digest of what a scenario asks, the same for a text and for a user's message with it, without metadata."""
    return scenario_id(normalised_input(scenario.input))


def task_id(scenario: Scenario) -> str:
    """A digest of what a scenario asks, and of its metadata. Nobody chose it, unlike the scenario's id."""
    return scenario_id(normalised_input(scenario.input), scenario.metadata)


def overlap(held_out: Sequence[Scenario], training: Sequence[Scenario]) -> list[Scenario]:
    """The held-out scenarios that are trained on: those with the id, the input and metadata, or the input of a
    training scenario. A user's message is the same input in whatever form it is written.

    An input that several scenarios of one side share, with other metadata, tells no task from another (a game, say,
    whose metadata has the seed). Of those scenarios, ids and metadata are compared alone.
    """
    ids = {scenario.id for scenario in training}
    tasks = {task_id(scenario) for scenario in training}
    inputs = {input_id(scenario) for scenario in training} - (_ambiguous(held_out) | _ambiguous(training))
    return [
        scenario
        for scenario in held_out
        if scenario.id in ids or task_id(scenario) in tasks or input_id(scenario) in inputs
    ]


def _ambiguous(scenarios: Iterable[Scenario]) -> set[str]:
    """Digests of the inputs that scenarios with different metadata share."""
    tasks: defaultdict[str, set[str]] = defaultdict(set)
    for scenario in scenarios:
        tasks[input_id(scenario)].add(task_id(scenario))
    return {task for task, meanings in tasks.items() if len(meanings) > 1}


Measure = Callable[..., Awaitable[Evaluation]]
"""`evaluate`, with the graph and all that the training run fixes."""


class Evaluations:
    """The held-out evaluations of one training run. To make it asks the store: do so in a thread.

    An evaluation is kept in the trajectory store: its runs as those of any evaluation, and a row of the table
    `evaluations` that names them. It belongs to the policy, the version, the ids of the held-out scenarios, the number
    of runs, the temperature, the name and the code of the reward function (`reward_facts`), and the name of the
    training run. A change of the graph is not noticed. Without a store it is kept in memory, and a run that is
    continued measures anew.

    Args:
        measure: Makes an evaluation.
        policy: The policy.
        held_out: The scenarios, their reward and how they are measured.
        store: Where evaluations are kept; None: in memory.
        run: Name of the training run.
        resumed: Whether the run may be one that is continued, so that kept evaluations count.
        progress: Whether to show bars on a terminal.
    """

    def __init__(
        self,
        measure: Measure,
        policy: Policy,
        held_out: HeldOut,
        *,
        store: TrajectoryStore | None,
        run: str,
        resumed: bool,
        progress: bool,
    ) -> None:
        self._measure, self._policy, self._held_out = measure, policy.name, held_out
        self._scenarios = held_out.resolve_scenarios([])
        self._store, self._has_name, self._progress = store, bool(run), progress
        self._key = _key(policy, held_out, self._scenarios, run)
        self._run_ids: Mapping[int, Sequence[str]] = (
            store.evaluations(self._key) if store is not None and resumed else {}
        )
        self.by_version: dict[int, Evaluation] = {}
        """By version: all evaluations of this process, and those of the store that were looked up."""

    @property
    def first(self) -> int | None:
        """The version that the training run began with, where a run of this name kept it."""
        return next(iter(self._run_ids), None) if self._has_name else None

    async def find_evaluation(self, version: int) -> Evaluation | None:
        """The evaluation of a version, if it was made before; None: it was not."""
        if version in self.by_version:
            return self.by_version[version]
        if self._store is None or (ids := self._run_ids.get(version)) is None:
            return None
        records = await asyncio.to_thread(lambda store: list(map(store.get, ids)), self._store)
        runs = [run for run in records if run is not None]
        if len(runs) < len(ids):
            return None
        log.info("%s@%d was measured before; its runs are in %s", self._policy, version, self._store.name)
        self.by_version[version] = Evaluation(runs, {self._policy: version}, self._held_out.success)
        return self.by_version[version]

    async def of(self, version: int) -> Evaluation:
        """The evaluation of a version: the one that was made before, or else a new one."""
        return await self.find_evaluation(version) or await self.anew(version)

    async def anew(self, version: int) -> Evaluation:
        """A new evaluation of a version.

        Raises:
            RolloutsFailed: As `evaluate`.
        """
        evaluation = await self._measure(
            self._scenarios,
            self._held_out.reward,
            version={self._policy: version},
            n=self._held_out.n,
            success=self._held_out.success,
            temperature=self._held_out.temperature,
            progress=f"held-out scenarios, {self._policy}@{version}" if self._progress else False,
        )
        self.by_version.setdefault(version, evaluation)
        if self._store is not None:
            ids = [run.id for run in evaluation.trajectories]
            await asyncio.to_thread(self._store.add_evaluation, self._key, version, ids)
        return evaluation


def _key(policy: Policy, held_out: HeldOut, scenarios: Sequence[Scenario], run: str) -> str:
    """What an evaluation belongs to, besides the version. A policy that is created again is another one."""
    facts: list[Any] = [
        policy.name,
        policy.created,
        sorted(scenario.id for scenario in scenarios),
        held_out.n,
        held_out.temperature,
        reward_facts(held_out.reward),
        run,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def reward_facts(reward: Any) -> Any:
    """The name of a reward function, and what it computes as far as that can be read off it, as JSON.

    That is its bytecode and its defaults, the functions of its module that it calls, the numbers and texts of its
    module that it reads, and what it encloses: so the parts and weights of `weighted`, and the function and arguments
    of a `functools.partial`. Of an object that is called, it is the code of `__call__` and, of a frozen dataclass, the
    fields; the state of other objects may change while they are used. What other modules do is not known.

    Args:
        reward: The function.
    """
    try:
        return _Reader().facts(reward)
    except RecursionError:  # something that contains itself
        return _qualified_name(reward)


class _Reader:
    """Reads facts off values, each function once."""

    def __init__(self) -> None:
        self._read: dict[int, int] = {}
        """Number of each function that was read, by its `id`."""

    def facts(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, Mapping):
            return [[self.facts(key), self.facts(item)] for key, item in value.items()]
        if isinstance(value, (set, frozenset)):
            return sorted(repr(self.facts(item)) for item in value)
        if isinstance(value, (list, tuple)):
            return [self.facts(item) for item in value]
        if isinstance(value, functools.partial):
            return ["partial", *map(self.facts, (value.func, value.args, value.keywords))]
        if isinstance(value, MethodType):
            return [self.facts(value.__self__), self.facts(value.__func__)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, CodeType):
            code = (value.co_code, value.co_exceptiontable, value.co_names, value.co_consts)
            return [self.facts(part) for part in code]
        if isinstance(value, type) or not callable(value):
            return _qualified_name(value if isinstance(value, type) else type(value))
        if (inner := getattr(value, "__wrapped__", None)) is not None:  # by `functools.cache`, say
            return [_qualified_name(type(value)), self.facts(inner)]
        if isinstance(call := type(value).__call__, FunctionType):
            return [_qualified_name(type(value)), self.facts(call), self.facts(_fields(value))]
        return _qualified_name(value)

    def _function(self, function: FunctionType) -> Any:
        if (number := self._read.get(id(function))) is not None:
            return number
        self._read[id(function)] = len(self._read)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__, cells, _globals(function))
        return [_qualified_name(function), *map(self.facts, parts)]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty as yet
        return None


def _globals(function: FunctionType) -> dict[str, Any]:
    """What a function reads in its module: functions of the module, numbers and texts."""
    space = function.__globals__
    there = {name: space[name] for name in sorted(_names(function.__code__)) if name in space}
    return {
        name: value
        for name, value in there.items()
        if isinstance(value, _PLAIN) or (isinstance(value, FunctionType) and value.__module__ == function.__module__)
    }


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a frozen dataclass; None of anything else."""
    parameters = getattr(value, "__dataclass_params__", None)
    if not is_dataclass(value) or not getattr(parameters, "frozen", False):
        return None
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _qualified_name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
