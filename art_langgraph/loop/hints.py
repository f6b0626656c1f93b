"""Scenarios of which all runs failed are run once more, with a hint in the prompts of the policy."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from art_langgraph.client.client import TrainerClient
from art_langgraph.loop.rollout import Concurrency, limit_of, run_all
from art_langgraph.rewards import GroupReward, score_group
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError

log = logging.getLogger("art_langgraph")


HintFunction = Callable[[Scenario, list[Trajectory]], "str | Awaitable[str | None] | None"]
"""Makes a hint of a scenario and of its runs, which have all failed. None: it has none for them."""
HintedRun = Callable[[Scenario, str], Awaitable[Trajectory]]
"""Runs a scenario with a hint in the policy's prompts."""


@dataclass(frozen=True, slots=True)
class Hints:
    """When `train` gives hints, and how often it tries them.

    Args:
        function: Makes the hints.
        success: A run with at least this reward has succeeded. A scenario gets a hint if no run of it has.
        runs: Hinted runs of such a scenario.
        patience: After so many hinted runs in a row without a success, no more hints are given. None: they always are.

    Raises:
        ConfigError: `runs` or `patience` is below 1.
    """

    function: HintFunction
    success: float = 0.5
    runs: int = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise ConfigError(f"Hints(runs={self.runs}): at least one run must try a hint")
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"Hints(patience={self.patience}): at least one run must try a hint")

    @classmethod
    def of(cls, hints: HintFunction | Hints) -> Hints:
        """The settings, from themselves or from a function."""
        return hints if isinstance(hints, Hints) else cls(hints)

    def failed(self, group: TrajectoryGroup) -> bool:
        """Whether all scored runs of a scenario have failed, and there is one."""
        rewards = [reward for reward in group.rewards if reward is not None]
        return bool(rewards) and max(rewards) < self.success


@dataclass(slots=True)
class HintPatience:
    """Counts the runs with a hint since one succeeded, and ends the hints when they are too many.

    Args:
        hints: The settings.
        runs_since_success: Hinted runs since the last success.
    """

    hints: Hints
    runs_since_success: int = 0

    @property
    def over(self) -> bool:
        """Whether no more hints are given."""
        return self.hints.patience is not None and self.runs_since_success >= self.hints.patience

    def learn(self, counts: HintCounts) -> None:
        """Takes what the hints of a step did into account.

        Args:
            counts: Of the step.
        """
        self.runs_since_success = 0 if counts.successes else self.runs_since_success + counts.runs
        if self.over:
            log.info("no more hints are given: the last %d runs with a hint failed too", self.runs_since_success)


@dataclass(slots=True)
class HintCounts:
    """What hints did in a step.

    Args:
        failed: Scenarios of which all runs failed.
        hinted: Those of them that got a hint.
        runs: Runs with a hint.
        successes: Those of them that succeeded.
        rescued: Scenarios with such a success: the policy learns from itself with the hint.
        ignored: Runs in which the policy was not asked with the hint; they count as no success.
    """

    failed: int = 0
    hinted: int = 0
    runs: int = 0
    successes: int = 0
    rescued: int = 0
    ignored: int = 0

    def __str__(self) -> str:
        words = f"hints: {self.failed} scenarios failed, {self.hinted} hinted, {self.rescued} rescued"
        return f"{words} ({self.successes} of {self.runs} runs)"


@dataclass(slots=True)
class Rescue:
    """What came of the hints of a step.

    Args:
        counts: How many.
        hints: By id of a run that failed: the hint with which its scenario was solved.
        runs: The runs with a hint. No step trains them.
    """

    counts: HintCounts = field(default_factory=HintCounts)
    hints: dict[str, str] = field(default_factory=dict)
    runs: list[Trajectory] = field(default_factory=list)

    def add(self, other: Rescue) -> None:
        """Adds what came of the hints of other groups."""
        for count in fields(HintCounts):
            setattr(self.counts, count.name, getattr(self.counts, count.name) + getattr(other.counts, count.name))
        self.hints |= other.hints
        self.runs += other.runs


async def rescue(
    groups: Sequence[TrajectoryGroup],
    hints: Hints,
    run: HintedRun,
    *,
    policy: str,
    client: TrainerClient,
    max_concurrency: Concurrency,
    group_reward: GroupReward | None = None,
) -> Rescue:
    """Runs each scenario of which all runs failed with a hint.

    A hint function that raises gives no hint, and a warning says so: a step is not lost by it.

    Args:
        groups: The runs of a step, scored.
        hints: The settings.
        run: Runs a scenario with a hint, and scores the run.
        policy: That is trained.
        client: Its server, whose ledger says which answers had a hint.
        max_concurrency: Runs with hints at once. A semaphore is a limit that several calls share.
        group_reward: Scores hinted runs beside those that failed; None: they have their rewards.
    """
    limit = limit_of(max_concurrency)
    outcome = Rescue()

    async def run_limited(scenario: Scenario, hint: str) -> Trajectory:
        async with limit:
            return await run(scenario, hint)

    async def rescue_group(group: TrajectoryGroup) -> None:
        if (hint := await _hint(hints, group)) is None:
            return
        outcome.counts.hinted += 1
        runs = await run_all(run_limited(group.scenario, hint) for _ in range(hints.runs))
        if group_reward is not None:
            copies = [trajectory.model_copy(deep=True) for trajectory in group.trajectories]
            beside = TrajectoryGroup(scenario=group.scenario, trajectories=[*runs, *copies])
            runs = (await score_group(beside, group_reward)).trajectories[: len(runs)]
        outcome.runs += runs
        outcome.counts.runs += len(runs)
        read = [await _read_hint(trajectory, policy, hint, client) for trajectory in runs]
        outcome.counts.ignored += read.count(False)
        successes = [
            trajectory
            for trajectory, had_hint in zip(runs, read, strict=True)
            if had_hint and trajectory.reward is not None and trajectory.reward >= hints.success
        ]
        outcome.counts.successes += len(successes)
        if successes:
            outcome.counts.rescued += 1
            rewarded_runs = [trajectory for trajectory in group.trajectories if trajectory.reward is not None]
            outcome.hints |= {trajectory.id: hint for trajectory in rewarded_runs}

    failures = [group for group in groups if hints.failed(group)]
    outcome.counts.failed = len(failures)
    await run_all(map(rescue_group, failures))
    if outcome.counts.ignored:
        log.warning(
            "%d of %d hinted runs never read their hint, since the trainer server could not tell that their requests "
            "belong to the run: let the graph ask the policy by ChatART, or by LangChain's ChatOpenAI",
            outcome.counts.ignored,
            outcome.counts.runs,
        )
    return outcome


async def _hint(hints: Hints, group: TrajectoryGroup) -> str | None:
    try:
        hint = hints.function(group.scenario, list(group.trajectories))
        hint = await hint if inspect.isawaitable(hint) else hint
    except Exception as error:  # the user's function: its scenario gets no hint
        log.warning("no hint for scenario %s: %s: %s", group.scenario.id, type(error).__name__, error)
        return None
    return hint or None


async def _read_hint(run: Trajectory, policy: str, hint: str, client: TrainerClient) -> bool:
    """Whether the policy's answers in a run were given with the hint in the prompt, by the ledger."""
    ids = [call.id for call in run.completions if call.id is not None and call.policy == policy and not call.cached]
    rows = await client.completions(ids) if ids else {}
    return bool(rows) and all(row.hint == hint for row in rows.values())


_MOST = 5
"""Lines of a hint that are made of runs."""
_LENGTH = 600
"""Characters of a line."""


def hint_errors(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
    """What the tools said when they refused a call, and what the graph raised: errors that name their remedy.

    Args:
        scenario: The task; it is not read.
        failed_runs: Its runs, of which none succeeded.

    Returns:
        The different errors, the most frequent first, five at most; None where there are none.
    """
    errors = [
        f"{call.tool}: {call.result}" for run in failed_runs for call in run.tool_calls if call.is_error and call.result
    ]
    errors += [run.error for run in failed_runs if run.error is not None]
    return _lines("Earlier attempts failed with these errors. Do not repeat them.", errors)


def hint_judge(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
    """What a judge said of the runs (`Trajectory.reward_reason`).

    Args:
        scenario: The task; it is not read.
        failed_runs: Its runs, of which none succeeded.

    Returns:
        The different reasons, the most frequent first, five at most; None where no judge gave one.
    """
    reasons = [run.reward_reason for run in failed_runs if run.reward_reason]
    return _lines("Earlier attempts were judged so. Do better.", reasons)


def hint_tools(tools: Iterable[Any]) -> HintFunction:
    """A hint that lists the names of all tools, for policies that call tools which do not exist.

    Args:
        tools: LangChain tools, or their names.
    """
    names = [tool if isinstance(tool, str) else str(tool.name) for tool in tools]

    def hint(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
        return f"These tools exist, and no others: {', '.join(names)}." if names else None

    return hint


def hint_reference(key: str = "answer", words: str = "A correct solution: {}") -> HintFunction:
    """A hint with the reference answer of the scenario.

    Args:
        key: Where the scenario's metadata has it. A scenario without it gets no hint.
        words: The hint, with `{}` where the answer belongs.
    """

    def hint(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
        value = scenario.metadata.get(key)
        return None if value is None else words.replace("{}", str(value))

    return hint


def first_hint(*functions: HintFunction) -> HintFunction:
    """The hint of the first function that has one.

    Args:
        functions: In the order in which they are asked.
    """

    async def hint(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
        for function in functions:
            answer = function(scenario, failed_runs)
            if text := (await answer if inspect.isawaitable(answer) else answer):
                return text
        return None

    return hint


def _lines(head: str, texts: Iterable[str]) -> str | None:
    """A list of different texts, the most frequent first."""
    counts = Counter(" ".join(text.split())[:_LENGTH] for text in texts)
    lines = [line for line, _ in counts.most_common(_MOST)]
    return "\n".join([head, *(f"- {line}" for line in lines)]) if lines else None
