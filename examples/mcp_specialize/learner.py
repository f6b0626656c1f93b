"""How a policy learns a server: by `specialize`, which is given the server and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

from art_examples.learning.learn import Learned
from art_examples.learning.runs import Learner, Run
from art_examples.mcp_specialize.servers import ExampleServer

from art_mcp import GenerationSettings, RunSettings, Specialization, TrainingSettings, connect, specialize
from trainer_server.wire import ConfigError

MINUTES = 20.0
"""Time of a whole run. With `--steps` there is no limit: each stage takes what it takes."""


def specialized(name: str, server: ExampleServer) -> Learner:
    """A learner that specializes a policy to a server, which is installed. name: name of the task."""

    async def learner(run: Run) -> Learned:
        options = run.options
        if options.models:
            raise ConfigError(f"--model {options.models[0]}: `specialize` measures the policy alone")
        with tempfile.TemporaryDirectory() as folder:
            worlds = [server.world(Path(folder), run.seed)] if server.world else None
            async with connect([server.program, *server.arguments], worlds=worlds) as connected:
                made = await specialize(
                    connected,
                    policy=run.policy,
                    client=run.client,
                    minutes=MINUTES if options.steps is None else None,
                    scenarios=None
                    if options.held_out is None
                    else round(options.held_out / GenerationSettings().held_out),
                    training=TrainingSettings(steps=options.steps, judge=options.judge),
                    runs=RunSettings(rank=8),
                    seed=run.seed,
                    progress=False,
                    on_stage=run.tell,
                )
        return learned_of(name, run.seed, made)

    return learner


def learned_of(name: str, seed: int, made: Specialization) -> Learned:
    """The outcome in the form of the other examples. Success is that on new values and new wordings together."""
    measured = {stage: one.on_headline for stage, one in made.measurements.items()}
    return Learned(
        name,
        seed,
        before=measured.get("before"),
        prompted=measured.get("prompted"),
        warm=measured.get("after_sft"),
        after=measured.get("after"),
        seconds=dict(made.seconds),
        tokens={stage: tokens.trained for stage, tokens in made.tokens.items() if tokens.trained},
        rewards=[row["reward"] for row in made.steps],
        skipped=sum(row["skipped"] is not None for row in made.steps),
    )
