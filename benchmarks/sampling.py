"""Uniform and learnable scenarios on simulated policies: informative groups of a step, and what is learnt from them.

    python -m benchmarks.sampling [--json] [--seeds 20] [--steps 40]

No model runs. Each scenario of a world has a skill s; a run solves it with probability 1/(1 + exp(-s)). Skills are
drawn from a normal distribution. An informative group raises the skill of its scenario by 0.5, and that of all others
by 0.01; a dead group changes nothing. So what is learnt follows from the number of informative groups by assumption:
the figures tell how well the sampler finds such groups, and not how fast a language model learns. Samplers, rewards and
versions are the real ones. All sides see the same worlds. Steps have 8 scenarios with 8 runs each. A third side, the
oracle, knows all skills, and takes the scenarios whose next group is most likely informative: no sampler can find more
such groups in a step, though what it learns from them decides what there is to find later.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from art_langgraph import LearnableSampler, Sampler, Scenario, Trajectory, TrajectoryGroup, UniformSampler
from art_langgraph.loop.sampling.informative import informative
from art_langgraph.trajectory import CompletionCall

GROUPS, RUNS = 8, 8
OWN, OTHERS = 0.5, 0.01
"""What an informative group adds to the skill of its scenario, and of all others."""


@dataclass(frozen=True, slots=True)
class World:
    """Scenarios of a simulated task.

    Args:
        name: What it stands for.
        scenarios: How many.
        mean: Mean of their skills, in logits.
        deviation: Standard deviation of their skills.
    """

    name: str
    scenarios: int
    mean: float
    deviation: float


WORLDS = (
    World("most never solved", 100, -6.0, 3.0),
    World("many never, some always solved", 100, -2.0, 5.0),
    World("the same, more scenarios than runs reach", 400, -2.0, 5.0),
    World("nearly all learnable", 48, 0.0, 1.5),
    World("most always solved", 100, 5.0, 3.0),
)


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a training came to.

    Args:
        informative: Groups of a step that teach something, mean over the steps.
        success: Rate at which the policy solves a scenario in the end, mean over all scenarios.
    """

    informative: float
    success: float


class Oracle:
    """Knows the skills."""

    def __init__(self) -> None:
        self.skills: list[float] = []

    def choose(
        self, scenarios: Sequence[Scenario], count: int, *, step: int, taken: Collection[str] = ()
    ) -> list[Scenario]:
        """The scenarios with the highest probability of an informative group."""
        return sorted(scenarios, key=lambda one: -self._chance(self.skills[int(one.id)]))[:count]

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        """There is nothing to learn."""

    @staticmethod
    def _chance(skill: float) -> float:
        rate = 1 / (1 + math.exp(-skill))
        return 1 - rate**RUNS - (1 - rate) ** RUNS


def simulate(world: World, sampler: Sampler, steps: int, seed: int) -> Learnt:
    """Trains a simulated policy."""
    rng = random.Random(seed)
    skills = [rng.gauss(world.mean, world.deviation) for _ in range(world.scenarios)]
    scenarios = [Scenario(id=f"{at}", input=f"{at}") for at in range(world.scenarios)]
    taught = version = 0
    for step in range(1, steps + 1):
        groups = []
        if isinstance(sampler, Oracle):
            sampler.skills = skills
        for scenario in sampler.choose(scenarios, GROUPS, step=step):
            rate = 1 / (1 + math.exp(-skills[int(scenario.id)]))
            runs = [_run(scenario, float(rng.random() < rate), version, step) for _ in range(RUNS)]
            groups.append(TrajectoryGroup(scenario=scenario, trajectories=runs))
        sampler.learn(groups)
        alive = [group for group in groups if informative(group)]
        taught += len(alive)
        version += bool(alive)
        for group in alive:
            skills[int(group.scenario.id)] += OWN
        skills = [skill + OTHERS * len(alive) for skill in skills]
    return Learnt(taught / steps, statistics.fmean(1 / (1 + math.exp(-skill)) for skill in skills))


def _run(scenario: Scenario, reward: float, version: int, step: int) -> Trajectory:
    call = CompletionCall(id="c", model="agent", version=version, started=step)
    return Trajectory(scenario=scenario, reward=reward, completions=[call], temperature=1.0, started=step)


def measure(world: World, steps: int, seeds: int) -> dict[str, Any]:
    """Both samplers in the same worlds: means, and 95 % of the mean difference by paired seeds."""
    uniform = [simulate(world, UniformSampler(seed), steps, seed) for seed in range(seeds)]
    learnable = [simulate(world, LearnableSampler("agent", n=RUNS, seed=seed), steps, seed) for seed in range(seeds)]
    oracle = [simulate(world, Oracle(), steps, seed) for seed in range(seeds)]
    gains = [new.informative - old.informative for new, old in zip(learnable, uniform, strict=True)]
    spread = 1.96 * statistics.stdev(gains) / math.sqrt(seeds)
    return {
        "world": asdict(world),
        "uniform": {"informative": _mean(uniform, "informative"), "success": _mean(uniform, "success")},
        "learnable": {"informative": _mean(learnable, "informative"), "success": _mean(learnable, "success")},
        "oracle": {"informative": _mean(oracle, "informative"), "success": _mean(oracle, "success")},
        "gain": statistics.fmean(gains),
        "gain_interval": [statistics.fmean(gains) - spread, statistics.fmean(gains) + spread],
    }


def _mean(results: list[Learnt], name: str) -> float:
    return statistics.fmean(getattr(result, name) for result in results)


def main() -> None:
    """Prints both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seeds", type=int, default=20, help="simulated worlds of each kind, at least 2")
    parser.add_argument("--steps", type=int, default=40, help="training steps")
    options = parser.parse_args()
    console = Console(stderr=True)
    rows = [measure(world, options.steps, options.seeds) for world in track(WORLDS, console=console)]
    if options.json:
        print(json.dumps({"groups_per_step": GROUPS, "runs": RUNS, "steps": options.steps, "worlds": rows}, indent=2))
        return
    columns = (
        "world",
        "informative groups of 8: uniform",
        "learnable",
        "difference (95 %)",
        "oracle",
        "success in the end",
    )
    table = Table(*columns)
    for row in rows:
        old, new, best, (low, high) = (row[name] for name in ("uniform", "learnable", "oracle", "gain_interval"))
        table.add_row(
            f"{row['world']['name']} ({row['world']['scenarios']})",
            f"{old['informative']:.2f}",
            f"{new['informative']:.2f}",
            f"{row['gain']:+.2f} ({low:+.2f} to {high:+.2f})",
            f"{best['informative']:.2f}",
            f"{old['success']:.3f}, {new['success']:.3f}, {best['success']:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
