"""Recipe: what is done in the stages that change the policy, and which version is taken."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from art_langgraph.client.client import TrainerClient
from art_langgraph.costs.tokens import Tokens
from art_langgraph.judge.ruler import Ruler
from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.failures import RolloutsFailed, check_rewards, runs_of
from art_langgraph.loop.rollout import Graph, gather
from art_langgraph.loop.sampling.dead_groups import groups_by_version
from art_langgraph.trajectory import TrajectoryGroup
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.calls import schemas_of
from art_mcp.specialization.measure import rate_scenarios
from art_mcp.specialization.settings import RunSettings, TrainingSettings, WarmStart
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.stage_runner import Stage, StageRunner
from art_mcp.specialization.stages.holdout import shown_and_kept, to_train_on
from art_mcp.specialization.stages.measurement import MeasuredStages
from art_mcp.specialization.stages.reinforcement import TEMPERATURE, reinforce
from art_mcp.specialization.stages.selection import put_aside, select_version
from art_mcp.specialization.stages.toolbox import Toolbox, example_messages
from art_mcp.specialization.stages.warm_start import Imitation, warm_start
from art_mcp.specialization.verify import solved, verify

_LEAST = 20.0
"""Seconds of the warm start and of the training at least. With less time they are left out."""
_FEWEST_STEPS = 12
"""Steps of a training at least: fewer gained nothing beyond chance (docs/benchmarks/settings.md), and a warm start
makes better use of their time."""
_STEP_COST = 3.0
"""What a run of a step costs, compared with a measured one of as many calls: it is trained on, and some are
replaced."""
_STEPS_OF_NEW = 2
"""Steps for which there must be scenarios that the warm start has not imitated, so that these alone are trained on."""


@dataclass(slots=True, kw_only=True)
class Recipe:
    """The stages that train. Each is done once: what an earlier process has ended is read from the directory.

    Args:
        outcome: The outcome, which each stage adds to.
        stage_runner: The time, the journal, and the report.
        measured_stages: The measurements on the held-out sets.
        trainer: The trainer server.
        box: The tools of the agent.
        agent: The agent.
        own_agent: Whether the user made it, so that its prompt is not known.
        training: How the policy is trained.
        runs: How the agent is run.
        ruler: Compares runs. None: nobody does.
        seed: Seed of every choice.
        progress: Whether to show progress bars on a terminal.
    """

    outcome: Specialization
    stage_runner: StageRunner
    measured_stages: MeasuredStages
    trainer: TrainerClient
    box: Toolbox
    agent: Graph
    own_agent: bool
    training: TrainingSettings
    runs: RunSettings
    ruler: Ruler | None
    seed: int
    progress: bool
    _training: list[MCPScenario] = field(init=False)
    _selection: list[MCPScenario] = field(init=False)
    _shown: list[str] = field(default_factory=list)
    """Ids of the scenarios that the warm start has imitated."""
    _measured: Sequence[TrajectoryGroup] = ()
    """Runs that measured the difficulty."""
    _selected: dict[int, Evaluation] = field(default_factory=dict)
    """Evaluations on the selection scenarios, by version."""

    def __post_init__(self) -> None:
        self._training, self._selection = put_aside(self.outcome.scenarios.train, self.seed)
        if len(self._training) < self.training.groups_per_step:
            self._training, self._selection = self.outcome.scenarios.train, []
        self.outcome.schemas = schemas_of(self.box.tools)

    async def measure_prompted(self) -> None:
        """Measures the untrained version with demonstrations in its prompt, if its prompt is known."""
        examples = example_messages(self._training, self.seed)
        if self.own_agent or not examples:
            why = "the prompt of your own agent is not known" if self.own_agent else "there is no demonstration"
            return self.stage_runner.skip("prompted", why)
        await self.measured_stages.prompted_baseline(
            self.box.agent(self.trainer, self.outcome.policy, self.runs, examples)
        )

    def weigh_training(self, settings: WarmStart) -> None:
        """Leaves the training out, and gives its time to the warm start, where too few of its steps would fit. An
        earlier process of the run may have done so. A number of steps that was asked for is kept.

        Args:
            settings: Those of the warm start.
        """
        imitates = settings.conversations is not None or any(scenario.plan.executed for scenario in self._training)
        if self.training.steps is not None or not imitates:
            return
        journal = self.stage_runner.directory.journal
        earlier, begun = journal.of("skip", "rl"), journal.of("begin", "warm start")
        if begun and not earlier:
            return  # an earlier process has decided that there is time for them
        why = earlier[0]["why"] if earlier else self._too_few_steps()
        if why is None:
            return
        self.training = replace(self.training, steps=0)
        self.stage_runner.budget.leave_out("difficulty", "rl", "selection", "after")
        self._without("rl", why)

    def _too_few_steps(self) -> str | None:
        """Why too few steps would fit; None: enough do, or nobody knows, or there is no limit."""
        seconds, cost = self.stage_runner.budget.foresees("rl", now="warm start"), self.measured_stages.measurer.cost
        if seconds is None or not cost:
            return None
        step = _STEP_COST * self._longer() * cost * self.training.groups_per_step * self.training.n
        if seconds >= _FEWEST_STEPS * step:
            return None
        return (
            f"a step takes about {step:.0f} s, {int(seconds / step)} fit into its {seconds:.0f} s, and fewer than "
            f"{_FEWEST_STEPS} rarely gain anything: the warm start gets the time (with more minutes more fit; "
            "--steps N makes N in any case)"
        )

    def _longer(self) -> float:
        """How many times as many calls of the model a run of the training makes as a run of the last measurement: an
        untrained policy often calls no tool at all. 1 at least."""
        measured = list(self.outcome.measurements.values())
        runs = measured[-1].evaluation.trajectories if measured else []
        if not runs or not self._training:
            return 1.0
        asked = statistics.fmean(len(run.completions) for run in runs)
        needed = statistics.fmean(len(scenario.plan.reference) + 1 for scenario in self._training)
        return max(1.0, needed / max(asked, 1.0))

    async def warm_start(self, settings: WarmStart) -> None:
        """Lets the policy imitate demonstrations."""
        if done := self.stage_runner.end_event("warm start"):
            self.outcome.warm_start, self.outcome.version = done["metrics"], done["version"]
            self._shown = done["scenarios"]
            return
        training = self._training if self.training.steps == 0 else shown_and_kept(self._training, self.seed)[0]
        imitation = Imitation.of(
            settings,
            training,
            self._selection,
            self.box.tools,
            self.runs.system,
            self.seed,
            self.outcome.scenarios.held_out,
        )
        if not imitation.conversations:
            return self._without("warm start", "no reference of the training scenarios was executed")
        allowed = self.stage_runner.budget.allows("warm start")
        begun = self.stage_runner.directory.journal.of("begin", "warm start")
        if allowed is not None and allowed < _LEAST and not begun:
            return self._without("warm start", f"only {allowed:.0f} s are left for it")
        about = f"imitating {len(imitation.conversations)} demonstrations"
        with self.stage_runner.stage("warm start", about) as stage:
            result = await warm_start(
                self.trainer,
                self.outcome.policy,
                imitation,
                seconds=stage.seconds,
                key=f"{self.stage_runner.directory.name}-warm-start",
                progress=self.progress,
            )
            metrics = result.metrics
            self._shown = imitation.imitated_ids(metrics)
            trained = round(metrics.get("tokens_unique", 0) * metrics.get("epochs", 0))
            stage.facts |= {
                "version": result.version,
                "metrics": metrics,
                "tokens": Tokens(trained=trained).summary(),
                "scenarios": self._shown,
            }
            self.outcome.warm_start, self.outcome.version = metrics, result.version
            self.stage_runner.on_stage(f"{self.outcome.model}: {_describe_warm_start(metrics)}")
            if left_out := {reason: count for reason, count in metrics.get("turns_skipped", {}).items() if count}:
                reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
                self._note("imitated", f"answers that the warm start did not imitate: {reasons}")

    async def measure_difficulty(self) -> None:
        """Measures how often the policy solves each training scenario, if that was asked for."""
        runs = self.training.difficulty_runs
        if not runs or self.stage_runner.end_event("difficulty"):
            return
        with self.stage_runner.stage("difficulty", f"{runs} runs of each of {len(self._training)} scenarios") as stage:
            groups = await gather(
                self.agent,
                self._training,
                runs,
                verify(),
                temperature=TEMPERATURE,
                max_concurrency=self.runs.max_concurrency,
                timeout=self.runs.timeout,
                store=self.stage_runner.directory.store,
                progress=self.progress and "measuring difficulty",
            )
            check_rewards(groups)
            self._measured = groups
            rate = rate_scenarios(ScenarioSet(self._training), Evaluation(runs_of(groups), success=solved))
            by_id = {scenario.id: scenario for scenario in rate.scenarios}
            known = [by_id.get(scenario.id, scenario) for scenario in self.outcome.scenarios.scenarios]
            self.outcome.scenarios = replace(self.outcome.scenarios, scenarios=known)
            self._training = [by_id[scenario.id] for scenario in self._training]
            self.stage_runner.directory.save_scenarios(self.outcome.scenarios)
            sometimes = len(rate.keep_learnable())
            stage.facts |= {"sometimes": sometimes, "tokens": Tokens.of(runs_of(groups)).summary()}
            self.stage_runner.on_stage(f"{sometimes} of {len(rate)} are solved sometimes: these come first")

    async def reinforce(self) -> None:
        """Trains with GRPO, for as long as there is time, and goes on with a training that was interrupted."""
        journal, store = self.stage_runner.directory.journal, self.stage_runner.directory.store
        for line in journal.of("step", "rl"):
            self.outcome.steps.append(line["row"])
            if (measured := line["measured"]) is not None:
                self._selected[measured] = self.stage_runner.directory.measurement(f"rl-{measured}", measured)
        if store is not None and self.outcome.steps:
            self.outcome.groups = groups_by_version(store.list(), self.outcome.policy)
        if done := self.stage_runner.end_event("rl"):
            self.outcome.version = done["version"]
            return
        allowed = self.stage_runner.budget.allows("rl")
        if allowed is not None and allowed < _LEAST and not self.outcome.steps:
            return self._without("rl", f"only {allowed:.0f} s are left for it")
        took = sum(self.outcome.steps[-1]["seconds"].values()) if self.outcome.steps else 0.0
        if self.outcome.steps and (self.outcome.steps[-1]["stopped"] or (allowed is not None and allowed < took)):
            with self.stage_runner.stage("rl", "no time is left for another step") as stage:
                await self._end_of_training(stage)
            return
        if self.training.watched and not self._selection:
            why = "too few training scenarios to put any aside: --evaluate-every and --patience measure nothing"
            self._note("selection scenarios", why)
        least = _STEPS_OF_NEW * self.training.groups_per_step
        scenarios = to_train_on(self._training, self._shown, least, self.seed)
        about = (
            f"steps of {self.training.groups_per_step} scenarios × {self.training.n} runs, from {len(scenarios)} of "
            f"{len(self._training)} scenarios"
        )
        with self.stage_runner.stage("rl", about) as stage:
            try:
                async for record in reinforce(
                    self.agent,
                    scenarios,
                    policy=self.outcome.policy,
                    client=self.trainer,
                    training=self.training,
                    runs=self.runs,
                    schemas=self.outcome.schemas,
                    seconds=stage.seconds,
                    first_step=len(self.outcome.steps) + 1,
                    run=self.stage_runner.directory.name,
                    ruler=self.ruler,
                    selection=self._selection,
                    measured_groups=self._measured,
                    store=store,
                    seed=self.seed,
                    progress=self.progress,
                ):
                    runs = [*runs_of(record.groups), *record.hinted]
                    own = Tokens.of(runs) + Tokens(trained=record.result.metrics.get("tokens_unique", 0))
                    row, measured = record.summary(), None
                    if record.evaluation is not None:
                        measured = record.result.version
                        self._selected[measured] = record.evaluation
                        self.stage_runner.directory.save_measurement(f"rl-{measured}", record.evaluation)
                    facts = {"row": row, "tokens": own.summary(), "measured": measured}
                    journal.note("step", stage="rl", **facts, left=self.stage_runner.budget.seconds_left)
                    self.outcome.steps.append(row)
                    self.outcome.groups += record.groups
                    left = f" ({self.stage_runner.budget.text()})" if self.stage_runner.budget.text() else ""
                    self.stage_runner.on_stage(f"{record}{left}")
            except RolloutsFailed as error:  # what was made until then must not be lost with a training
                self._note("rl", f"the training ended: {error}")
            await self._end_of_training(stage)

    async def _end_of_training(self, stage: Stage) -> None:
        """Notes the version that the training has made. A step that a killed process has sent is waited for."""
        steps = self.stage_runner.directory.journal.of("step", "rl")
        sent = await self.trainer.find_step(
            self.outcome.policy, f"{self.stage_runner.directory.name}-step-{len(steps) + 1}"
        )
        if sent is not None and not sent.status.final:
            await self.trainer.wait(sent)
        self.outcome.version = (await self.trainer.policy(self.outcome.policy)).latest
        tokens = sum((Tokens(**line["tokens"]) for line in steps), Tokens())
        stage.facts |= {"version": self.outcome.version, "steps": len(steps), "tokens": tokens.summary()}

    async def select(self) -> None:
        """Compares the last version with that before the training, on scenarios that were put aside for it."""
        if done := self.stage_runner.end_event("selection"):
            self.outcome.version, self.outcome.selection = done["version"], done["why"]
            return
        earlier, last = self.measured_stages.before_training.version, self.outcome.version
        if not self.training.keep_best or last == earlier:
            self.outcome.selection = f"version {last} is the last one"
            return await self._promote()
        count = self._affordable(len(self._selection), versions=2)
        if not count:
            self.outcome.selection = f"version {last} is the last one: there was no time, or no scenario, to compare it"
            self.stage_runner.skip("selection", self.outcome.selection)
            return await self._promote()
        scenarios = self._selection[:count]
        if count < len(self._selection):  # others were measured on more scenarios, so they cannot be compared
            self._selected.clear()
        with self.stage_runner.stage("selection", f"comparing versions on {count} scenarios put aside for it") as stage:
            for version in (earlier, last):
                if version not in self._selected:
                    try:
                        self._selected[version] = await self.measured_stages.measurer.measure(
                            self.agent, scenarios, version
                        )
                    except RolloutsFailed as error:
                        self.stage_runner.remark(
                            f"comparing {version}", f"version {version} could not be compared: {error}"
                        )
            self.outcome.version, self.outcome.selection = select_version(self._selected, last)
            rates = {str(version): evaluation.success_rate for version, evaluation in self._selected.items()}
            runs = [run for evaluation in self._selected.values() for run in evaluation.trajectories]
            tokens = Tokens.of(runs).summary()
            stage.facts |= {
                "version": self.outcome.version,
                "why": self.outcome.selection,
                "rates": rates,
                "tokens": tokens,
            }
            self.stage_runner.on_stage(self.outcome.selection)
            await self._promote()

    def _affordable(self, count: int, versions: int) -> int:
        """How many scenarios there is time for, for so many versions. 0: too few to tell anything."""
        seconds, cost = self.stage_runner.budget.allows("selection"), self.measured_stages.measurer.cost
        if seconds is not None and cost:
            count = min(count, int(seconds / (versions * cost)))
        return count if count >= 8 else 0

    async def _promote(self) -> None:
        """Lets the policy's name mean the version that is taken, unless somebody has promoted another one."""
        known = await self.trainer.policy(self.outcome.policy)
        if self.outcome.version == (known.latest if known.promoted is None else known.promoted):
            return
        if known.promoted is None:
            await self.trainer.promote(self.outcome.policy, self.outcome.version)
        else:
            why = f"version {known.promoted} is promoted, and stays so; `art-langgraph promote {self.outcome.model}`"
            self.stage_runner.remark("promoted", why)

    def _note(self, about: str, what: str) -> None:
        """Tells something now, and in the report."""
        self.stage_runner.remark(about, what)
        self.stage_runner.on_stage(what)

    def _without(self, stage: str, why: str) -> None:
        """Leaves a stage out."""
        self.stage_runner.remark(stage, f"{stage} was left out: {why}")
        self.stage_runner.skip(stage, why)


def _describe_warm_start(metrics: dict[str, object]) -> str:
    """What a warm start did, in words."""
    if skipped := metrics.get("skipped"):
        return f"the warm start changed nothing: {skipped}"
    losses = metrics.get("validation_losses") or [metrics.get("loss_first"), metrics.get("loss_last")]
    assert isinstance(losses, list)
    what = "held-out loss" if metrics.get("validation_losses") else "loss"
    least = min((loss for loss in losses if isinstance(loss, float)), default=None)
    return (
        f"{metrics.get('updates')} updates, {what} {losses[0]:.3f} to {least:.3f}, ended by {metrics.get('stopped')}"
        if least is not None and isinstance(losses[0], float)
        else f"{metrics.get('updates')} updates"
    )
