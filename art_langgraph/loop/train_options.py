"""All options of `train`, and what cannot be met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig

from art_langgraph.client.client import TrainerClient
from art_langgraph.credit import AdvantageFunction, RetryCredit
from art_langgraph.loop.graphs import Graph, GraphSource
from art_langgraph.loop.hints import HintFunction, Hints
from art_langgraph.loop.options import LoopOptions, values_of
from art_langgraph.loop.rollout import RolloutOptions, ScenarioLike, executor_of
from art_langgraph.loop.sampling.informative import Exploration
from art_langgraph.loop.sampling.samplers import LearnableSampler, Sampler, UniformSampler
from art_langgraph.loop.threads import check_thread
from art_langgraph.loop.watch.alarm_rules import AlarmRules
from art_langgraph.loop.watch.held_out import HeldOut
from art_langgraph.loop.watch.stopping import StopRule, check_rules
from art_langgraph.rewards import GroupReward, RewardFunction, check_callable
from art_langgraph.trajectory import Scenario, TrajectoryGroup
from trainer_server.tracking import Tracker
from trainer_server.wire import ConfigError, GRPOConfig


@dataclass(frozen=True, kw_only=True)
class WatchOptions(LoopOptions):
    """What a training loop sees of itself, and when it ends: keywords of `train`.

    Args:
        held_out: Scenarios that are never trained on, a JSONL file of them, or a HeldOut, which says how they are
            measured. The version that the run begins with is evaluated on them, and the last one. Kept in `store`, an
            evaluation is not made again by a run that is continued. None: nothing is measured.
        stop_when: Ends the run early: `TargetReached`, `Plateau`, `TimeBudget`, `TokenBudget`, a function of the
            records, or several of these, of which the first that holds ends it. `StepRecord.stopped` says why.
        alarms: Thresholds of `StepRecord.alarms`; None: the defaults.
        first_step: Number of the first step.
    """

    held_out: HeldOut | Sequence[ScenarioLike] | str | Path | None = None
    stop_when: StopRule | Sequence[StopRule] | None = None
    alarms: AlarmRules | None = None
    first_step: int = 1

    @property
    def stop_rules(self) -> list[StopRule]:
        """The rules of `stop_when`, any of which ends the run."""
        if self.stop_when is None:
            return []
        return list(self.stop_when) if isinstance(self.stop_when, Sequence) else [self.stop_when]

    def check_watch(self) -> None:
        """Raises ConfigError where these options cannot be met together."""
        check_rules(self.stop_rules, held_out=self.held_out is not None)
        if self.held_out is None and (self.evaluate_every is not None or self.keep_best):
            option = "keep_best=True" if self.keep_best else f"evaluate_every={self.evaluate_every}"
            raise ConfigError(f"{option} needs held_out=…: scenarios to measure versions on, which are not trained on")
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise ConfigError(f"evaluate_every={self.evaluate_every} must be at least 1 step")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(WatchOptions, RolloutOptions):
    """Arguments of `train`.

    Args:
        graph: A compiled graph, a function, or a factory that makes a graph for a scenario.
        scenarios: The tasks to learn from.
        policy: The policy to train; the graph asks it through ChatART.
        client: The trainer server.
        reward: Scores single runs. Either `reward` or `group_reward` is needed, unless a function sets the reward of
            its runs (`current_run().reward`), or only a teacher counts (`config.distill` with `rewards=False`).
        group_reward: Scores the runs of a scenario together (`Ruler`).
        advantages: Gives the advantages of a step in place of those that rewards give: takes the groups of the step,
            and returns a list for each of them, with one advantage for each run, in their order. An advantage is a
            number, or numbers by pattern of nodes or id of a completion; it is not scaled. A run without a reward is
            not trained, whatever its advantage, which may be None. None: the rewards of a group are compared.
        config: Settings of every step, or a function of its number, for schedules.
        sampler: Which scenarios a step gets. "uniform": all equally often. "learnable": those whose runs will most
            likely get unequal rewards, by what their runs came to until now (`LearnableSampler`). Or your own
            `Sampler`.
        measured: Runs of the scenarios that were made and scored before, such as those of `gather`. The sampler learns
            from those at `temperature`. The first step learns from the informative groups among them that the newest
            version sampled and that are no evaluation, and makes rollouts only for what is missing.
        explore: Runs scenarios whose runs all got the same reward again at a higher temperature, up to a budget. It
            comes before `dynamic_sampling`. None: never.
        dynamic_sampling: How often a step runs further scenarios in place of those whose runs all got the same reward,
            which teach nothing; 0: never.
        max_staleness: How many versions a step's completions may be behind. None: 1 where engines and trainer have GPUs
            of their own (`TrainerClient.health`, `overlaps`), else 0. With 0, rollouts and training take turns.
            With more, groups are made all the time, also during training, and a step takes the first `groups_per_step`
            that are complete, so that nothing waits for the slowest run. This saves time where the engine and the
            trainer do not share a processor. A group that others overtake may become older: it is used with its
            importance weights, or left out where `GRPOConfig.max_staleness` says so.
        in_flight: Groups that are made at once, at most, where `max_staleness` is above 0. No more than a step and
            `max_staleness` later ones take are made in any case. None: as many as there are `max_concurrency` runs,
            at least `groups_per_step`.
        pins: Whether a run keeps the version that it began with ("run"), or each of its calls gets the newest one
            ("follow"), where `max_staleness` is above 0. Each completion is trained by its own version and log-probs.
            With "follow", long runs are younger when they are complete, and no single version is responsible for one.
        hints: Where all runs of a scenario fail, makes a hint of the scenario and of these runs, and the scenario runs
            once more with the hint in the policy's prompts. If that succeeds, the policy without the hint learns from
            the policy with it, at the tokens of the runs that failed. `Hints` has settings; `config.distill` the
            weight. None: no hints.
        nodes: Patterns of the node paths to train ("planner", "worker/*"); None: all.
        retry_credit: Whether attempts of a node before an error retry are trained ("train") or left out ("drop").
        store: Where the runs are stored, and marked as trained, so that `art-langgraph train --from-store` leaves them
            out; None: nowhere.
        run_config: LangChain's config of each run; `rollout` calls it `config`. It names no thread.
        shuffle: The uniform sampler draws scenarios in random order. Without it they are taken in the order given, so
            that you choose which scenarios a step gets.
        seed: Seeds the sampler.
        trackers: What gets the steps, in the background: names such as "wandb" (`CLIENT_TRACKERS`), places
            `module:Class`, or objects with the methods of `Tracker`. None: those that `ART_TRACKERS` in the environment
            names, if any. A tracker that fails stops nothing; a warning says so.
        progress: Shows a bar on a terminal.
    """

    graph: Graph = field(kw_only=False)
    scenarios: Sequence[ScenarioLike] = field(kw_only=False)
    policy: str
    client: TrainerClient
    reward: RewardFunction | None = None
    group_reward: GroupReward | None = None
    advantages: AdvantageFunction | None = None
    config: GRPOConfig | Callable[[int], GRPOConfig] | None = None
    sampler: Sampler | Literal["uniform", "learnable"] = "uniform"
    measured: Sequence[TrajectoryGroup] = ()
    explore: Exploration | None = None
    dynamic_sampling: int = 0
    max_staleness: int | None = None
    in_flight: int | None = None
    pins: Literal["run", "follow"] = "run"
    hints: HintFunction | Hints | None = None
    nodes: Sequence[str] | None = None
    retry_credit: RetryCredit = "drop"
    temperature: float | None = 1.0
    run_config: RunnableConfig | None = None
    shuffle: bool = True
    seed: int = 0
    trackers: Sequence[str | Tracker] | None = None
    progress: bool = True

    def settings(self, step: int) -> GRPOConfig:
        """The settings of a step, by its number."""
        return self.config(step) if callable(self.config) else self.config or GRPOConfig()

    def run_options(self) -> dict[str, Any]:
        """The keywords of `rollout` for each run, those of evaluations too. Raises ConfigError for the executor."""
        return values_of(self, RolloutOptions) | {"config": self.run_config, "executor": executor_of(self.executor)}

    def make_sampler(self) -> Sampler:
        """The sampler that `sampler` names. Raises ConfigError where there is none of that name."""
        if self.sampler == "uniform":
            return UniformSampler(self.seed, self.shuffle)
        if self.sampler == "learnable":
            return LearnableSampler(self.policy, n=self.n, seed=self.seed)
        if isinstance(self.sampler, str):
            raise ConfigError(
                f"sampler={self.sampler!r}: give 'uniform', 'learnable', or an object with the methods of Sampler"
            )
        return self.sampler

    def check(self, source: GraphSource, scenarios: Sequence[Scenario]) -> None:
        """Raises ConfigError for options that cannot be met.

        Args:
            source: Of the graph.
            scenarios: All that are trained on.
        """
        rewards_count = self.settings(self.first_step).rewards_count
        if self.reward is None and self.group_reward is None and not source.may_answer and rewards_count:
            raise ConfigError("train() needs reward=… or group_reward=…: without one there is nothing to learn from")
        if self.advantages is not None and not rewards_count:
            raise ConfigError(
                "advantages=… takes the place of rewards, which config.distill leaves out (rewards=False)"
            )
        if self.groups_per_step < 1 or self.first_step < 1:
            raise ConfigError(
                f"groups_per_step={self.groups_per_step} and first_step={self.first_step} must be at least 1"
            )
        if self.steps < 1 or self.n < 1:
            raise ConfigError(
                f"steps={self.steps} and n={self.n} must be at least 1; evaluate() measures without a step"
            )
        if len(scenarios) < self.groups_per_step:
            remedy = f", or groups_per_step={len(scenarios)} (on the command line --groups-per-step)"
            raise ConfigError(
                f"{len(scenarios)} scenarios are fewer than groups_per_step={self.groups_per_step}, the scenarios of a "
                f"step: give more scenarios{remedy if scenarios else ''}"
            )
        if (self.max_staleness or 0) < 0 or self.dynamic_sampling < 0:
            raise ConfigError(
                f"max_staleness={self.max_staleness} and dynamic_sampling={self.dynamic_sampling} must be 0 or more"
            )
        if self.in_flight is not None and (self.in_flight < 1 or not self.max_staleness):
            raise ConfigError(
                f"in_flight={self.in_flight} must be at least 1, and needs max_staleness=1 or more: with "
                f"max_staleness={self.max_staleness}, a step makes all its groups at once"
            )
        if self.pins not in ("run", "follow") or (self.pins == "follow" and not self.max_staleness):
            raise ConfigError(
                f"pins={self.pins!r} must be 'run', or 'follow' with max_staleness=1 or more: with "
                f"max_staleness={self.max_staleness}, no version is made while runs go on"
            )
        explore, temperature = self.explore, self.temperature
        if explore is not None and temperature is not None and explore.temperature <= temperature:
            raise ConfigError(
                f"explore: its temperature={explore.temperature} must be above that of the training, {temperature}"
            )
        source.check(scenarios)
        check_callable(self.reward, self.group_reward)
        check_thread(self.run_config, runs=self.groups_per_step * self.n * self.steps, name="run_config")
        self.check_watch()
