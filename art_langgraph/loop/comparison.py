"""Compares two versions of a policy on the same scenarios, for rewards that judge runs against each other."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from art_langgraph.loop.evaluate import mean_interval
from art_langgraph.loop.graphs import Graph
from art_langgraph.loop.options import keywords_of, values_of
from art_langgraph.loop.rollout import GatherOptions, ScenarioLike, gather
from art_langgraph.loop.threads import check_thread
from art_langgraph.rewards import GroupReward, score_group
from art_langgraph.trajectory import TrajectoryGroup
from trainer_server.common.intervals import wilson


class Pair(NamedTuple):
    """Mean scores of both versions in a scenario."""

    before: float
    after: float


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """The scores of two versions. A scenario that could not be judged counts only in `unscored`.

    Args:
        policy: The policy.
        versions: The earlier version and the later one.
        groups: A group per scenario, with the runs of both versions; `Trajectory.requested_version` has the version.
    """

    policy: str
    versions: tuple[int, int]
    groups: list[TrajectoryGroup]

    @property
    def pairs(self) -> list[Pair]:
        """Mean scores of both versions, for each scenario that could be judged."""
        pairs = []
        for group in self.groups:
            scores: dict[int, list[float]] = {version: [] for version in self.versions}
            for run in group.trajectories:
                if run.reward is not None and isinstance(run.requested_version, dict):
                    scores[int(run.requested_version[self.policy])].append(run.reward)
            if all(scores.values()):
                pairs.append(Pair(*(statistics.fmean(scores[version]) for version in self.versions)))
        return pairs

    @property
    def unscored(self) -> int:
        """How many scenarios could not be judged."""
        return len(self.groups) - len(self.pairs)

    @property
    def means(self) -> Pair | None:
        """Mean score of each version; None when nothing could be judged."""
        pairs = self.pairs
        return Pair(*map(statistics.fmean, zip(*pairs, strict=True))) if pairs else None

    @property
    def difference(self) -> tuple[float, tuple[float, float] | None] | None:
        """Mean gain in score from the earlier version to the later one, per scenario, and its 95 % interval."""
        gains = [pair.after - pair.before for pair in self.pairs]
        return (statistics.fmean(gains), mean_interval(gains)) if gains else None

    @property
    def wins(self) -> int:
        """How many scenarios the later version scores higher in."""
        return sum(pair.after > pair.before for pair in self.pairs)

    @property
    def losses(self) -> int:
        """How many scenarios the later version scores lower in."""
        return sum(pair.after < pair.before for pair in self.pairs)

    @property
    def ties(self) -> int:
        """How many scenarios both versions score equally in."""
        return len(self.pairs) - self.wins - self.losses

    @property
    def win_interval(self) -> tuple[float, float]:
        """95 % interval (Wilson) of the share of wins, ties left out."""
        return wilson(self.wins, self.wins + self.losses)

    def __str__(self) -> str:
        earlier, later = (f"{self.policy}@{version}" for version in self.versions)
        if (means := self.means) is None or (difference := self.difference) is None:
            return f"{earlier} and {later}: none of {len(self.groups)} scenarios could be judged"
        gain, interval = difference
        spread = f" ({interval[0]:+.3f} to {interval[1]:+.3f})" if interval else ""
        low, high = self.win_interval
        return (
            f"{earlier} {means.before:.3f}, {later} {means.after:.3f}, difference {gain:+.3f}{spread}; better in "
            f"{self.wins}, worse in {self.losses}, equal in {self.ties} of {len(self.pairs)} scenarios (wins among "
            f"those that differ: {low:.2f} to {high:.2f}); not judged: {self.unscored}"
        )


@dataclass(frozen=True, kw_only=True)
class ComparisonArguments(GatherOptions):
    """Arguments of `compare_versions`.

    Args:
        graph: A compiled graph, a function, or a factory that makes a graph for a scenario.
        scenarios: Tasks that the policy was not trained on.
        reward: Scores the runs of a scenario together (`Ruler`).
        policy: The policy to compare.
        versions: The earlier version and the later one.
        n: Runs of each scenario, by each version.
        store: Where the runs are stored, without their scores; None: nowhere.
        progress: Shows a bar on a terminal.
    """

    graph: Graph = field(kw_only=False)
    scenarios: Sequence[ScenarioLike] = field(kw_only=False)
    reward: GroupReward = field(kw_only=False)
    policy: str
    versions: tuple[int, int]
    n: int = 1
    temperature: float | None = 0.0
    progress: bool = True


@keywords_of(ComparisonArguments)
async def compare_versions(options: ComparisonArguments) -> VersionComparison:
    """Runs both versions `n` times on each scenario, and scores all runs of a scenario as a group.

    The judge is not told which version made a run. The runs are marked as evaluation, and no training step takes them.

    Raises:
        ConfigError: As `gather`.
        RolloutsFailed: Every run of a version raised, as `gather` says.
        PinIgnored: As `gather`.
    """
    policy, versions = options.policy, options.versions
    check_thread(options.config, runs=len(versions) * options.n * len(options.scenarios))
    sides = [
        await gather(
            options.graph,
            options.scenarios,
            options.n,
            version={policy: version},
            evaluation=True,
            **values_of(options, GatherOptions)
            | {"progress": f"measuring {policy}@{version}" if options.progress else False},
        )
        for version in versions
    ]
    pairs = [
        TrajectoryGroup(scenario=before.scenario, trajectories=[*before.trajectories, *after.trajectories])
        for before, after in zip(*sides, strict=True)
    ]
    groups = await asyncio.gather(*(score_group(group, options.reward) for group in pairs))
    return VersionComparison(policy, versions, groups)
