"""The rollouts of a training that go on while steps are computed: a step takes the first groups that are complete."""

from __future__ import annotations

import asyncio
import logging
import re
import statistics
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from art_langgraph.client.step_marks import settle
from art_langgraph.loop.batch import RolloutBatch
from art_langgraph.loop.failures import answered
from art_langgraph.loop.graphs import GraphSource
from art_langgraph.loop.hints import Rescue
from art_langgraph.loop.rollout import run_groups
from art_langgraph.loop.sampling.curriculum import Curriculum
from art_langgraph.loop.sampling.informative import informative
from art_langgraph.loop.step_check import wait_until_ready
from art_langgraph.loop.step_rollouts import StepRollouts
from art_langgraph.loop.stream import CompleteGroup, GroupStream
from art_langgraph.loop.train_options import TrainOptions
from art_langgraph.loop.tuning import WAITING, Pace, Slots, run_seconds
from art_langgraph.progress import progress_bar
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import GRPOConfig

log = logging.getLogger("art_langgraph")


class StreamRollouts(StepRollouts):
    """Makes groups all the time; a step takes the first `groups_per_step` of them that are complete.

    The sampler chooses scenarios for `groups_per_step` groups at a time, as it does for a step where rollouts and
    training take turns. There are never more groups than steps may take until the newest version is `max_staleness`
    versions old. So a group is older only if it took so long that groups which began later were complete before it.

    Exploration and hints belong to the making of a group, whatever step takes it.

    Args:
        options: Of the training.
        source: Of the graph.
        curriculum: Chooses the scenarios, and learns from their runs.
        limit: Bounds how many runs there are at once, together with those of evaluations.
        in_flight: How many groups run at once, at most.
    """

    def __init__(
        self,
        options: TrainOptions,
        source: GraphSource,
        curriculum: Curriculum,
        limit: Slots,
        in_flight: int,
    ) -> None:
        super().__init__(options, source, curriculum, limit)
        self._stream = GroupStream(self._make, limit, in_flight)
        self._staleness = options.max_staleness or 0
        self._step = 0
        """The step that takes groups, or that will take the next ones; 0: none has yet."""
        self._version: int | None = None
        """The newest version; None: it is not known yet."""
        self._draw = 0
        """Number of the sampler's next choice."""
        self._scenarios = deque[tuple[int, int, Scenario]]()
        """What was chosen, with the number of the choice and the place there."""
        self._places = set[tuple[int, int]]()
        """Places of the groups that an earlier process completed."""
        self._accepted_keys = list[str]()
        """Keys of the steps that the server accepted from an earlier process."""
        self._explored = Counter[int]()
        """Runs that explore, by the choice of the sampler that their groups belong to."""
        self._age_rule_shown = False
        self._answer_start = 0.0
        """When the last of the groups began in which the trainer server answered."""
        self._in_flight, self._start = in_flight, 0.0
        self._waits = dict(self._stream.waits)
        """Those of the stream when the last step took its groups."""
        self._pace: Pace | None = None
        """Of the steps with as many slots as now, without the first step, which waits in any case."""

    async def batches(self, steps: Sequence[int]) -> AsyncGenerator[RolloutBatch]:
        """The groups of each step. Closing it early cancels the rollouts that still run."""
        async with self._stream:
            for step in steps:
                batch = await self.roll(step)
                if batch.job is not None and batch.key is not None:
                    self._accepted_keys.append(batch.key)
                yield batch

    def advance(self, version: int) -> None:
        """Lets groups begin that the next step may take, because a step has made its version."""
        self._version = version
        if self._step:
            self._step += 1
            self._allow(self._options.groups_per_step)

    async def _run_step(self, step: int) -> RolloutBatch:
        """Waits for the groups of a step."""
        options, start = self._options, time.monotonic()
        ready = self._curriculum.ready if step == options.first_step else []
        if not self._step:
            self._draw = step
            self._stream.put(await self._restore())
        self._step = step
        taken = [CompleteGroup(group, start, start) for group in ready]
        config, rounds, dropped = options.settings(step), self._rounds(step), 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with progress_bar(*columns, shown=options.progress) as bar:
            shown = bar.add_task(f"step {step}: groups", total=options.groups_per_step)
            while (missing := self._missing(taken, rounds)) > 0:
                self._allow(missing)
                group = await self._stream.take()
                if self._usable(group.group, config):
                    taken.append(group)
                    bar.advance(shown)
                else:
                    dropped += 1
        self._allow(0)
        batch = _batch(step, taken, self._count_ages(taken))
        batch.measured_count, batch.drop_count = len(ready), dropped
        batch.replacement_count = max(0, len(taken) - options.groups_per_step) if rounds else 0
        end, waits = time.monotonic(), dict(self._stream.waits)
        batch.seconds["wait"] = end - start
        if self._start:
            by_reason = {reason: seconds - self._waits[reason] for reason, seconds in waits.items()}
            waits_of_step = {"groups": end - start, **by_reason}
            pace = Pace(self._limit.count, len(taken), end - self._start, run_seconds(batch.groups), waits_of_step)
            self._pace = self._pace + pace if self._pace is not None and self._pace.slots == pace.slots else pace
            batch.pace, batch.bound = pace, self._describe_bound(self._pace)
        self._start, self._waits = end, waits
        self._check.of_use(step, batch.groups)
        return batch

    def _describe_bound(self, pace: Pace) -> str:
        """What bounds the speed of the training, and what to change."""
        share = pace.wait_share
        if share < WAITING:
            return (
                f"the trainer was busy {1 - share:.0%} of the time, and groups waited for it: give it more or faster "
                "devices, or steps with fewer tokens"
            )
        staleness = self._staleness
        remedies = {
            "slots": "add an engine, or raise max_concurrency where the engines can compute more requests",
            "in_flight": f"raise in_flight={self._in_flight}",
            "room": f"raise max_staleness={staleness}, which allows {staleness + 1} steps' groups at once",
        }
        return f"the trainer waited {share:.0%} of the time for groups: {remedies[pace.bottleneck]}"

    def _missing(self, groups: Sequence[CompleteGroup], rounds: int) -> int:
        """How many more groups a step takes, at most. Those that teach nothing are replaced, so many times."""
        size = self._options.groups_per_step
        useful = sum(informative(group.group) for group in groups) if rounds else len(groups)
        return min(size - useful, size * (1 + rounds) - len(groups))

    def _allow(self, missing: int) -> None:
        """Sets how many groups there may be: those that the step takes, and those of `max_staleness` later steps."""
        later_steps = min(self._staleness, self._options.steps - self._step)
        self._stream.allow(0 if later_steps < 0 else missing + later_steps * self._options.groups_per_step)

    def _ages(self, group: TrajectoryGroup, of: Callable[[Iterable[int]], int] = min) -> list[int]:
        """How many versions before the newest one each run was sampled: by default, its oldest completion."""
        by_run = [run.versions.get(self._options.policy) for run in group.trajectories]
        versions = [of(versions) for versions in by_run if versions]  # others have nothing to train
        newest = max(versions, default=0) if self._version is None else self._version
        return [max(0, newest - version) for version in versions]

    def _count_ages(self, groups: Sequence[CompleteGroup]) -> dict[int, int]:
        """How many groups are so many versions old: each as old as its oldest run."""
        ages = Counter(max(self._ages(group.group), default=0) for group in groups)
        return dict(sorted(ages.items()))

    def _usable(self, group: TrajectoryGroup, config: GRPOConfig) -> bool:
        """Whether a step takes a group: too few of its runs may be as young as the settings of the step want them."""
        ages, bound = self._ages(group), config.max_staleness
        stale = 0 if bound is None else sum(age > bound for age in self._ages(group, max))
        oldest = max(ages, default=0)
        if (stale or oldest > self._staleness) and not self._age_rule_shown:
            self._age_rule_shown = True
            log.warning(
                "step %d: a group is %d versions old (max_staleness=%d). Such groups are %s",
                self._step,
                oldest,
                self._staleness,
                _age_rule(config),
            )
        return not stale or len(ages) - stale >= 2

    async def _make(self, begin: Callable[[], None]) -> CompleteGroup:
        """Makes the next group, with the runs that are added where it teaches nothing."""
        options = self._options
        draw, place, scenario = self._next_scenario()
        name = (
            f"{self._prefix}{draw}.{place}/{uuid.uuid4().hex[:8]}"
            if options.run and options.store is not None
            else None
        )
        result = CompleteGroup(TrajectoryGroup(scenario=scenario), time.monotonic(), 0.0)

        async def run_group(n: int = options.n, **changes: Any) -> TrajectoryGroup:
            start = time.monotonic()

            async def run(scenario: Scenario) -> Trajectory:
                result.slot_seconds.append(time.monotonic() - start)
                begin()
                return await self._run(scenario, group=name, **changes)

            (group,) = await run_groups(
                self._source,
                run,
                [scenario],
                n,
                max_concurrency=self._limit,
                group_reward=options.group_reward,
                store=options.store,
                progress=False,
            )
            return group

        group = await run_group()
        if any(map(answered, group.trajectories)):
            self._answer_start = max(self._answer_start, result.start)
        elif self._check.unanswered([group]) and self._answer_start <= result.start:
            log.warning("the trainer server answered in no run of a group; when it is ready, they run once more")
            if await wait_until_ready(options.client, options.client.retry_for):
                group = await run_group()
        if (hanging := self._hanging(group)) and not self._teaches(group):
            group.trajectories += (await run_group(len(hanging))).trajectories
        group, result.exploration_count = await self._explore(draw, group, run_group)
        result.rescue = await self._rescue([group])
        self._curriculum.learn([group])
        result.group, result.timeout_count = self._without_hanging(group)
        result.end = time.monotonic()
        return result

    async def _explore(
        self, draw: int, group: TrajectoryGroup, run_group: Callable[..., Awaitable[TrajectoryGroup]]
    ) -> tuple[TrajectoryGroup, int]:
        """Adds hotter runs to a group that teaches nothing, and says how many. The budget is that of a choice."""
        explorer = self._explorer
        if explorer is None or self._explored[draw] + explorer.settings.n > explorer.settings.budget:
            return group, 0
        n, temperature = explorer.settings.n, explorer.settings.temperature
        self._explored[draw] += n

        async def run_hotter(_: Sequence[Scenario]) -> list[TrajectoryGroup]:
            return [await run_group(n, temperature=temperature)]

        (group,), count = await explorer.explore(run_hotter, [group])
        self._explored[draw] -= n - count
        return group, count

    def _next_scenario(self) -> tuple[int, int, Scenario]:
        """The next scenario, with the number of the sampler's choice and its place there."""
        options = self._options
        while not self._scenarios:
            ready = self._curriculum.ready if self._draw == options.first_step else []
            choice = self._curriculum.choose(self._draw, options.groups_per_step - len(ready), ready)
            self._scenarios.extend(
                (self._draw, place, scenario)
                for place, scenario in enumerate(choice)
                if (self._draw, place) not in self._places
            )
            self._draw += 1
        return self._scenarios.popleft()

    def _hanging(self, group: TrajectoryGroup) -> list[Trajectory]:
        """The runs that ran over `timeout`, and have no reward."""
        timeout = self._options.timeout
        if timeout is None:
            return []
        return [
            run
            for run in group.trajectories
            if run.seconds >= timeout and (run.error or "").startswith("TimeoutError") and not run.scored
        ]

    def _teaches(self, group: TrajectoryGroup) -> bool:
        """Whether at most one of the runs of a group is missing among those that have a reward."""
        return sum(run.scored for run in group.trajectories) >= max(1, self._options.n - 1)

    def _without_hanging(self, group: TrajectoryGroup) -> tuple[TrajectoryGroup, int]:
        """A group without the runs that ran over `timeout`, and how many these are. With them, if it has few others."""
        hanging, runs = self._hanging(group), group.trajectories
        if not hanging or not self._teaches(group):
            return group, 0
        ids = {run.id for run in hanging}
        rest = [run for run in runs if run.id not in ids]
        log.info(
            "a group of scenario %s goes on without %d of %d runs, which ran over timeout=%s: %d runs teach",
            group.scenario.id,
            len(hanging),
            len(runs),
            self._options.timeout,
            len(rest),
        )
        return group.model_copy(update={"trajectories": rest}), len(hanging)

    async def _restore(self) -> list[CompleteGroup]:
        """The groups of the training run that an earlier process completed and stored, and that no step has taken."""
        options, store = self._options, self._options.store
        if not options.run or store is None:
            return []
        policy = await options.client.policy(options.policy)
        self._version = policy.latest
        await settle(options.client, store, options.policy)
        taken = await asyncio.to_thread(store.trained, options.policy)
        for key in self._accepted_keys:  # a step that made no version frees its runs, and has had them all the same
            taken |= await asyncio.to_thread(store.runs_of_step, options.policy, key)
        ids = [scenario.id for scenario in self._curriculum.scenarios]
        stored_runs = await asyncio.to_thread(store.list, scenario=ids, since=policy.created)
        by_name = defaultdict[str, list[Trajectory]](list)
        for run in reversed(stored_runs):
            by_name[run.group or ""].append(run)
        result = []
        for name, runs in by_name.items():
            place = re.fullmatch(rf"{re.escape(self._prefix)}(\d+)\.(\d+)/[0-9a-f]+", name)
            if place is None or not self._complete(runs):
                continue
            self._places.add((int(place[1]), int(place[2])))
            if not any(run.id in taken for run in runs) and any(run.scored for run in runs):
                now = time.monotonic()
                result.append(CompleteGroup(TrajectoryGroup(scenario=runs[0].scenario, trajectories=runs), now, now))
        if result:
            log.info("%d groups of %r were complete and in no step: they go on", len(result), options.run)
        return result

    @property
    def _prefix(self) -> str:
        """How the names of this training's groups begin. Another policy may have a training run of the same name."""
        return f"{self._options.run}/{self._options.policy}/"

    def _complete(self, runs: Sequence[Trajectory]) -> bool:
        """Whether a stored group has all its runs, and their common scores where they are scored together."""
        options = self._options
        is_scored = options.group_reward is None or any(run.reward_source == "group" for run in runs)
        return len(runs) >= options.n and is_scored


def _age_rule(config: GRPOConfig) -> str:
    """What a step does with groups that are older than `max_staleness`, in words."""
    if config.max_staleness is not None:
        return f"left out if fewer than two of their runs are at most {config.max_staleness} versions old (config)"
    if config.importance_sampling_cap is None and config.importance_sampling_floor is None:
        return (
            "used without importance weights, because importance_sampling_cap is None. "
            "GRPOConfig(max_staleness=…) leaves them out"
        )
    return "used with their importance weights. GRPOConfig(max_staleness=…) leaves them out"


def _batch(step: int, groups: Sequence[CompleteGroup], ages: dict[int, int]) -> RolloutBatch:
    """What a step takes of the stream, with the sums over its groups."""
    rescues = [group.rescue for group in groups if group.rescue is not None]
    batch = RolloutBatch(step, [group.group for group in groups], ages=ages)
    if rescues:
        batch.rescue = Rescue()
        for part in rescues:
            batch.rescue.add(part)
    batch.exploration_count = sum(group.exploration_count for group in groups)
    batch.timeout_count = sum(group.timeout_count for group in groups)
    waits = [seconds for group in groups for seconds in group.slot_seconds]
    batch.seconds = {
        "rollout": max(group.end for group in groups) - min(group.start for group in groups),
        "slots": statistics.fmean(waits) if waits else 0.0,
    }
    return batch
