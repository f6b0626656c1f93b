"""Makes a policy better at an MCP server: scenarios → measurements → warm start → reinforcement learning → report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

from art_langgraph.client.client import TrainerClient
from art_langgraph.client.demonstrations import load_conversations
from art_langgraph.costs import GPUPrice
from art_langgraph.judge.ruler import Ruler
from art_langgraph.llm.llm import LLM, Usage
from art_mcp.client.connect import Server, connect
from art_mcp.client.reset import Reset
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.budget import Budget
from art_mcp.specialization.measuring.measure import Measurer
from art_mcp.specialization.output.directory import RunDirectory
from art_mcp.specialization.output.fingerprint import fingerprint
from art_mcp.specialization.recipe import Recipe
from art_mcp.specialization.report.write import write_report
from art_mcp.specialization.settings import MINUTES, GenerationSettings, RunSettings, TrainingSettings, WarmStart
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.stage_runner import StageRunner
from art_mcp.specialization.stages.generation import scenarios_for
from art_mcp.specialization.stages.measurement import MeasuredStages
from art_mcp.specialization.stages.toolbox import Agent, Toolbox
from art_mcp.worlds.place import Worlds
from trainer_server.wire import ConfigError, Policy


async def specialize(
    server: Server | str | Sequence[str],
    *,
    policy: str,
    client: TrainerClient | None = None,
    minutes: float | None = MINUTES,
    scenarios: int | ScenarioSet | str | Path | None = None,
    graph: Agent | None = None,
    generation: GenerationSettings = GenerationSettings(),
    warm_start: WarmStart | Literal["auto", "reference"] | str | Path | None = "auto",
    training: TrainingSettings = TrainingSettings(),
    runs: RunSettings = RunSettings(),
    seed: int = 0,
    output: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    on_stage: Callable[[str], None] = lambda stage: None,
    worlds: Worlds | None = None,
    reset: Reset | None = None,
) -> Specialization:
    """Trains a policy to use an MCP server, and measures it on held-out scenarios after each stage.

    Args:
        server: A connected server, or what `connect` takes.
        policy: Name of the policy. It is created if it is missing.
        client: Client of the trainer server. None finds the running server.
        minutes: Time for everything. It is divided among the stages, and what a stage leaves goes to the next ones.
            None: no limit; each stage takes what its settings say.
        scenarios: Maximum number of scenarios to generate, or a set of scenarios, or a JSONL file of
            `ScenarioSet.save`. None: as many good ones as there is time for.
        graph: Makes your agent from the server's tools. None takes `build_agent`.
        generation: How scenarios are generated.
        warm_start: Conversations that the policy imitates before training: "reference" (the references of the training
            scenarios, with the prompt of `build_agent`), a JSONL file of conversations, or a WarmStart, which also has
            an SFTConfig. None: no warm start. "auto": the references for `build_agent`, and none for an agent of yours.
        training: How the policy is trained.
        runs: How the agent is run.
        seed: Seed of the scenarios, their split, the order of training, and the warm start.
        output: Directory for the report, the scenarios, the journal and the adapter, all of which are written as they
            come. None writes nothing.
        resume: Continues the run in `output` that was killed, or begins one if the directory is empty. Stages that have
            ended are not done again.
        progress: Whether to show progress bars on a terminal.
        on_stage: Called with a line of text when a stage begins, and with its results.
        worlds: What the server works on, as `connect` takes it: each run gets a copy, all tools may be called, and the
            reward compares what a run changed with what it should have changed. A connected server has it.
        reset: Resets the server before each run, as `connect` takes it. A connected server has it.

    Returns:
        The scenarios, the measurements and the records of training.

    Raises:
        ConfigError: A setting is invalid, or there are too few scenarios, or `output` has files and `resume` is false,
            or it has a run with other settings.
        MCPError: The server cannot be used.
        LLMError: The model that writes scenarios failed before any scenario was kept, or no run could be judged.
        ServerError: The trainer server refused a request.
        JobFailed: A training step or the warm start failed.
        RolloutsFailed: Every run of the first measurement failed before the policy answered. Runs that raise after the
            policy answered are measured as failures. A later measurement that fails is a note in the report, and so is
            a training whose runs all fail, which ends then.
    """
    began = time.monotonic()
    if minutes is not None and minutes <= 0:
        raise ConfigError(f"minutes={minutes} must be above 0; None sets no limit")
    warm = _warm_start(warm_start, own_agent=graph is not None)
    if warm is not None and warm.conversations is not None:
        load_conversations(warm.conversations)  # before minutes of work: whether it can be read
    groups = training.groups_per_step if training.steps != 0 else 0
    if isinstance(scenarios, int) and scenarios <= groups:
        raise ConfigError(_too_few(f"scenarios={scenarios}", groups))
    async with AsyncExitStack() as stack:
        trainer = client if client is not None else await stack.enter_async_context(TrainerClient())
        adapted = await _policy(trainer, policy, runs.rank)
        if isinstance(server, Server):
            if worlds is not None or reset is not None:
                raise ConfigError(
                    "worlds= and reset= are for a server that is not connected yet: give them to `connect`"
                )
            live = server
        else:
            live = await stack.enter_async_context(connect(server, worlds=worlds, reset=reset))
        settings = fingerprint(
            server=f"{live.name} {live.version}".strip(),
            worlds=sorted(str(place.original) for place in live.world.places) if live.world else None,
            policy=policy,
            minutes=minutes,
            scenarios=f"{len(scenarios)} scenarios" if isinstance(scenarios, ScenarioSet) else scenarios,
            graph=graph,
            generation=generation,
            warm_start=warm_start,
            training=training,
            runs=runs,
            seed=seed,
        )
        directory = RunDirectory(None if output is None else Path(output), settings, resume=resume)
        stack.callback(directory.close)
        if live.serial:
            runs = replace(runs, max_concurrency=1)
        absent = {
            "prompted": graph is not None,
            "warm start": warm is None,
            "after_sft": warm is None,
            "difficulty": not training.difficulty_runs or training.steps == 0,
            "rl": training.steps == 0,
            "selection": not training.keep_best,
        }
        budget = Budget(
            None if minutes is None else 60 * minutes,
            earlier_seconds=directory.journal.last + time.monotonic() - began,
            skipped_stages=frozenset(name for name, is_absent in absent.items() if is_absent),
        )
        directory.journal.seconds_spent = lambda: budget.seconds_spent
        stage_runner = StageRunner(directory, budget, on_stage, lambda: None)
        if directory.resumed:
            on_stage(f"resuming {output}: {', '.join(stage_runner.seconds) or 'no stage'} done before")
        elif resume:
            on_stage(f"{output} has nothing to resume: this run begins anew")
        writer = None if generation.model is None else LLM.of(generation.model)
        ruler = Ruler(training.judge, seed=seed) if training.judge is not None else None
        asked = ({"scenarios": writer.usage} if writer else {}) | ({"judge": ruler.usage} if ruler else {})
        before = directory.journal.last_usage
        directory.journal.usage = lambda: {name: before.get(name, Usage()) + now for name, now in asked.items()}
        divided = await scenarios_for(live, scenarios, replace(generation, model=writer), stage_runner, seed, progress)
        _check_sizes(divided, groups)
        box = await Toolbox.of(live, divided, generation.allow_destructive)
        made = Specialization(
            server=live.name,
            server_version=live.version,
            policy=policy,
            base_model=adapted.base_model,
            scenarios=divided,
            version=adapted.latest,
            price=GPUPrice.of(await trainer.health()),
            notes=stage_runner.notes,
        )
        if box.left_out and not any(note.startswith(box.left_out) for note in divided.notes):
            stage_runner.remark("tools", box.left_out)  # the report of generated scenarios says it already
            on_stage(box.left_out)
        agent = graph(box.tools) if graph else box.agent(trainer, policy, runs)
        measured = MeasuredStages(
            outcome=made, stage_runner=stage_runner, measurer=Measurer(runs, progress), agent=agent, seed=seed
        )
        recipe = Recipe(
            outcome=made,
            stage_runner=stage_runner,
            measured_stages=measured,
            trainer=trainer,
            box=box,
            agent=agent,
            own_agent=graph is not None,
            training=training,
            runs=runs,
            ruler=ruler,
            seed=seed,
            progress=progress,
        )
        stage_runner.report = lambda: _report(made, stage_runner)
        await measured.before()
        await recipe.measure_prompted()
        if warm is not None:
            recipe.weigh_training(warm)
            await recipe.warm_start(warm)
            if made.warm_start is not None:
                await measured.after_sft()
        if recipe.training.steps != 0:
            await recipe.measure_difficulty()
            await recipe.reinforce()
        await recipe.select()
        await measured.after()
        if directory.path is not None:
            made.adapter = await trainer.export(policy, made.version, directory.path / "adapter", force=True)
        _report(made, stage_runner)
        directory.journal.note("done", model=made.model)
        return made


def _report(outcome: Specialization, stage_runner: StageRunner) -> None:
    """Writes the report of what is known so far."""
    outcome.seconds, outcome.tokens, outcome.usage = (
        stage_runner.seconds,
        stage_runner.tokens,
        dict(stage_runner.directory.journal.usage()),
    )
    write_report(outcome, stage_runner.directory)


def _warm_start(option: WarmStart | str | Path | None, *, own_agent: bool) -> WarmStart | None:
    """What `warm_start=` asks for. None: no warm start."""
    if option is None or isinstance(option, WarmStart):
        return option
    if option == "auto":
        return None if own_agent else WarmStart()
    return WarmStart(conversations=None if option == "reference" else option)


def _check_sizes(scenarios: ScenarioSet, groups_per_step: int) -> None:
    """Raises ConfigError if there are too few training scenarios for a step, or no held-out ones."""
    if len(scenarios.train) < max(groups_per_step, 1) or not scenarios.held_out:
        sizes = f"{len(scenarios.train)} scenarios to train on and {len(scenarios.held_out)} held out"
        raise ConfigError(_too_few(sizes, groups_per_step))


def _too_few(sizes: str, groups_per_step: int) -> str:
    return (
        f"{sizes} are too few for steps of {groups_per_step}: take more scenarios (scenarios=, --scenarios), fewer of "
        "them in a step (groups_per_step=, --groups), or give values for arguments (resources=, --resource)"
    )


async def _policy(trainer: TrainerClient, name: str, rank: int | None) -> Policy:
    """The policy of that name, which is created if there is none."""
    known = {policy.name: policy for policy in await trainer.policies()}
    return known.get(name) or await trainer.create_policy(name, rank=rank)
