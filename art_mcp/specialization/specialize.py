"""Makes a policy better at an MCP server: scenarios → measurements → warm start → reinforcement learning → report."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from art_langgraph.client.client import TrainerClient
from art_langgraph.loop.options import keywords_of
from art_mcp.client.connect import Server, connection_of
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.run_directory import RunDirectory
from art_mcp.specialization.settings import SpecializeOptions
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.stage_runner import Budget, Stage, StageRunner
from art_mcp.specialization.stages.generation import Generation
from art_mcp.specialization.stages.measurement import (
    Difficulty,
    MeasurementAfter,
    MeasurementAfterSFT,
    MeasurementBefore,
    MeasurementPrompted,
)
from art_mcp.specialization.stages.reinforcement import Reinforcement, TimeSplit
from art_mcp.specialization.stages.selection import Selection
from art_mcp.specialization.stages.warm_start import WarmStartStage
from trainer_server.wire import Policy


@keywords_of(SpecializeOptions)
async def specialize(options: SpecializeOptions) -> Specialization:
    """Trains a policy to use an MCP server, and measures it on held-out scenarios after each stage.

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
    start = time.monotonic()
    options.check()
    async with AsyncExitStack() as stack:
        client = options.client
        trainer = await stack.enter_async_context(TrainerClient()) if client is None else client
        policy = await _policy(trainer, options.policy, options.runs.rank)
        server = await stack.enter_async_context(connection_of(options.server, options))
        runner = _runner(stack, options, server, start)
        if server.serial:
            options = replace(options, runs=replace(options.runs, max_concurrency=1))
        context = RunContext(options=options, server=server, trainer=trainer, policy=policy, runner=runner)
        await runner.run(stages(context))
        outcome, directory = context.outcome, runner.directory
        if directory.path is not None:
            outcome.adapter = await trainer.export(
                options.policy, outcome.version, directory.path / "adapter", force=True
            )
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


def _runner(stack: AsyncExitStack, options: SpecializeOptions, server: Server, start: float) -> StageRunner:
    """What leads the run: its directory, which is taken until the stack ends, and its time since `start`."""
    path = None if options.output is None else Path(options.output)
    directory = RunDirectory(path, options.fingerprint(server), resume=options.resume)
    stack.callback(directory.close)
    seconds = None if options.minutes is None else 60 * options.minutes
    budget = Budget(seconds, earlier_seconds=directory.journal.last + time.monotonic() - start)
    directory.journal.seconds_spent = lambda: budget.seconds_spent
    runner = StageRunner(directory, budget, options.on_stage, lambda: None)
    if directory.resumed:
        options.on_stage(f"resuming {path}: {', '.join(directory.journal.seconds) or 'no stage'} done before")
    elif options.resume:
        options.on_stage(f"{path} has nothing to resume: this run begins anew")
    return runner
