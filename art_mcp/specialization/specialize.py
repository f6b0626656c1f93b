"""Makes a policy better at an MCP server: scenarios → measurements → warm start → reinforcement learning → report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

from art_langgraph.client.client import TrainerClient
from art_mcp.client.connect import Server, connect
from art_mcp.client.reset import Reset
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.budget import Budget
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.run_directory import RunDirectory
from art_mcp.specialization.settings import (
    MINUTES,
    Agent,
    GenerationSettings,
    RunSettings,
    SpecializeOptions,
    TrainingSettings,
    WarmStart,
)
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.stage_runner import Stage, StageRunner
from art_mcp.specialization.stages.difficulty import Difficulty
from art_mcp.specialization.stages.generation import Generation
from art_mcp.specialization.stages.measurement import (
    MeasurementAfter,
    MeasurementAfterSFT,
    MeasurementBefore,
    MeasurementPrompted,
)
from art_mcp.specialization.stages.reinforcement import Reinforcement, TimeSplit
from art_mcp.specialization.stages.selection import Selection
from art_mcp.specialization.stages.warm_start import WarmStartStage
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
        server: A connected server, or the command or the URL of one.
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
        worlds: Paths of what the server works on, each `PATH` or `NAME=PATH`: each run gets a copy, all tools
            may be called, and the reward compares what a run changed with what it should have changed. A connected
            server has it.
        reset: Resets the server before each run: a command, a URL, or a function. A connected server has it.

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
    options = SpecializeOptions(
        policy=policy,
        minutes=minutes,
        scenarios=scenarios,
        graph=graph,
        generation=generation,
        warm_start=warm_start,
        training=training,
        runs=runs,
        seed=seed,
        output=output,
        resume=resume,
        progress=progress,
        on_stage=on_stage,
    )
    options.check()
    async with AsyncExitStack() as stack:
        trainer = client if client is not None else await stack.enter_async_context(TrainerClient())
        record = await _policy(trainer, policy, runs.rank)
        live = await _connection(stack, server, worlds, reset)
        runner = _runner(stack, options, live, began)
        if live.serial:
            options = replace(options, runs=replace(runs, max_concurrency=1))
        context = RunContext(options=options, server=live, trainer=trainer, policy=record, runner=runner)
        await runner.run(stages(context))
        outcome, directory = context.outcome, runner.directory
        if directory.path is not None:
            outcome.adapter = await trainer.export(policy, outcome.version, directory.path / "adapter", force=True)
        context.report()
        directory.journal.note("done", model=outcome.model)
        return outcome


def stages(context: RunContext) -> list[Stage]:
    """The stages of a run, in their order. Each has its share of the time, and says whether it is left out.

    Args:
        context: What they share.
    """
    return [
        Generation(context),
        MeasurementBefore(context),
        MeasurementPrompted(context),
        TimeSplit(context),
        WarmStartStage(context),
        MeasurementAfterSFT(context),
        Difficulty(context),
        Reinforcement(context),
        Selection(context),
        MeasurementAfter(context),
    ]


async def _policy(trainer: TrainerClient, name: str, rank: int | None) -> Policy:
    """The policy of that name, which is created if there is none."""
    policies = {policy.name: policy for policy in await trainer.policies()}
    return policies.get(name) or await trainer.create_policy(name, rank=rank)


async def _connection(
    stack: AsyncExitStack, server: Server | str | Sequence[str], worlds: Worlds | None, reset: Reset | None
) -> Server:
    """The server, which is connected until the stack ends if it is not yet."""
    if not isinstance(server, Server):
        return await stack.enter_async_context(connect(server, worlds=worlds, reset=reset))
    if worlds is not None or reset is not None:
        raise ConfigError("worlds= and reset= are for a server that is not connected yet: give them to `connect`")
    return server


def _runner(stack: AsyncExitStack, options: SpecializeOptions, server: Server, began: float) -> StageRunner:
    """What leads the run: its directory, which is taken until the stack ends, and its time since `began`."""
    path = None if options.output is None else Path(options.output)
    directory = RunDirectory(path, options.fingerprint(server), resume=options.resume)
    stack.callback(directory.close)
    seconds = None if options.minutes is None else 60 * options.minutes
    budget = Budget(seconds, earlier_seconds=directory.journal.last + time.monotonic() - began)
    directory.journal.seconds_spent = lambda: budget.seconds_spent
    runner = StageRunner(directory, budget, options.on_stage, lambda: None)
    if directory.resumed:
        options.on_stage(f"resuming {path}: {', '.join(directory.journal.seconds) or 'no stage'} done before")
    elif options.resume:
        options.on_stage(f"{path} has nothing to resume: this run begins anew")
    return runner
