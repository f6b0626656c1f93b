"""How a policy learns a server: by `specialize`, which is given the server and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

from art_examples.learning.baselines import LiteLLMChat
from art_examples.learning.learn import Learned
from art_examples.learning.runs import Learner, Run
from art_examples.learning.stage import measure_stage
from art_examples.mcp_specialize.servers import ExampleServer

from art_mcp import GenerationSettings, RunSettings, Specialization, TrainingSettings, WarmStart, connect, specialize
from art_mcp.specialization.agent import build_agent
from art_mcp.specialization.demonstrations import demonstrations
from art_mcp.specialization.verify import solved, verify


def specialized(name: str, server: ExampleServer) -> Learner:
    """A learner that specializes a policy to a server, which is installed, in `--minutes` for all stages together. With
    `--steps` there is no limit of time, and the warm start takes each demonstration once."""

    async def learner(run: Run) -> Learned:
        options, share = run.options, GenerationSettings().held_out
        with tempfile.TemporaryDirectory() as folder:
            worlds = [server.world(Path(folder), run.seed)] if server.world else None
            async with connect([server.program, *server.arguments], worlds=worlds) as connected:
                made = await specialize(
                    connected,
                    policy=run.policy,
                    client=run.client,
                    minutes=(options.minutes or server.minutes) if options.steps is None else None,
                    scenarios=options.held_out and round(options.held_out / share),
                    warm_start="auto" if options.steps is None else WarmStart(epochs=1),
                    training=TrainingSettings(steps=options.steps, judge=options.judge),
                    runs=RunSettings(rank=8),
                    seed=run.seed,
                    progress=False,
                    on_stage=run.tell,
                )
                learned, tools = learned_of(name, run.seed, made), await connected.tools()
                asked = [measured.scenario for measured in learned.after.trajectories] if learned.after else []
                for model in options.models:
                    shown = demonstrations(made.scenarios.train[:3], tools)  # as many as in `prompted`
                    agent = build_agent(LiteLLMChat(model=model, demonstrations=shown, shots=3), tools)
                    await measure_stage(model, agent, asked, verify(), solved, run, learned)
        return learned

    return learner


def learned_of(name: str, seed: int, made: Specialization) -> Learned:
    """The outcome in the form of the other examples. Success is that on new values and new wordings together."""
    measured = {stage: one.on_headline for stage, one in made.measurements.items()}
    return Learned(
        name,
        seed,
        *(measured.get(stage) for stage in ("before", "prompted")),
        warm=measured.get("after_sft"),
        after=measured.get("after"),
        seconds=dict(made.seconds),
        tokens={stage: tokens.trained for stage, tokens in made.tokens.items() if tokens.trained},
        rewards=[row["reward"] for row in made.steps],
        skipped=sum(row["skipped"] is not None for row in made.steps),
    )
