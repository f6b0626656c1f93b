"""`art-langgraph train`: a step from recorded runs. `sft`: a warm start. `policies`: what the server has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from art_langgraph.cli.judge import JudgeOption, RubricOption, UrlOption, VotesOption, judge_runs, made_ruler
from art_langgraph.cli.trajectories import (
    ErrorOption,
    GraphOption,
    SinceOption,
    StoreOption,
    ThreadOption,
    filters,
    imported,
)
from art_langgraph.client.client import TrainerClient
from art_langgraph.credit import compare
from art_langgraph.judge.ruler import Ruler
from art_langgraph.loop.rollout import gather
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError, GRPOConfig, SFTConfig

_HISTORY = 200
"""Earlier scored runs that make the running baseline."""
_SFT = SFTConfig()


def train_command(
    policy: Annotated[str, typer.Option(help="Policy to train.")],
    from_store: Annotated[bool, typer.Option("--from-store", help="Train on recorded runs (needed: say so).")] = False,
    lr: Annotated[float, typer.Option(help="Learning rate.", min=0.0)] = 1e-4,
    node: Annotated[list[str] | None, typer.Option(help="Train only this node; repeatable, patterns allowed.")] = None,
    replay: Annotated[int, typer.Option(help="Run each scenario anew this many times and compare those runs.")] = 0,
    graph_object: Annotated[
        str | None, typer.Option("--graph-object", help="Graph to replay, as module:graph.")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="Reward function for replays, as module:function.")] = None,
    judge: JudgeOption = None,
    judge_url: UrlOption = None,
    rubric: RubricOption = None,
    votes: VotesOption = 1,
    again: Annotated[bool, typer.Option("--again", help="Also runs that this policy was trained on.")] = False,
    store: StoreOption = None,
    graph: GraphOption = None,
    thread: ThreadOption = None,
    since: SinceOption = None,
    error: ErrorOption = None,
) -> None:
    """Make one training step from recorded runs.

    Runs of the same scenario are compared with one another. A run alone in its scenario is compared with a running
    baseline, the mean reward of the policy's other runs; or, with --replay N, its scenario is run N times anew.
    Runs without a reward are left out: score them first (`feedback`, `score`), or with --judge MODEL, which compares
    the runs of each scenario.
    """
    if not from_store:
        raise ConfigError("say --from-store: runs come from the trajectory store (in Python, `train()` makes its own)")
    target = TrajectoryStore(store)
    used = set() if again else target.trained(policy)
    everything = target.list(**filters(graph, thread, since, None, None, error))
    mine = [one for one in everything if any(call.policy == policy for call in one.completions)]
    ruler = None if judge is None else made_ruler(judge, judge_url, rubric, votes)
    asyncio.run(_train(policy, target, mine, used, lr, node, replay, graph_object, reward, ruler))


async def _train(
    policy: str, store: TrajectoryStore, mine: list[Trajectory], used: set[str], lr: float, nodes: list[str] | None,
    replay: int, graph_object: str | None, reward: str | None, ruler: Ruler | None,
) -> None:  # fmt: skip
    runs = [one for one in mine if one.id not in used]
    async with TrainerClient() as trainer:
        if replay:
            if not graph_object or not (reward or ruler):
                raise ConfigError("--replay needs --graph-object module:graph, and --reward module:function or --judge")
            scenarios = list({one.scenario.id: one.scenario for one in runs}.values())
            print(f"replaying {len(scenarios)} scenarios {replay} times: their runs are compared with one another")
            groups: list[TrajectoryGroup] = await gather(
                imported(graph_object), scenarios, replay, imported(reward) if reward else None, group_reward=ruler,
                temperature=1.0, store=store,
            )  # fmt: skip
            runs = [one for group in groups for one in group.trajectories]
        elif ruler:
            unscored = [one for one in runs if one.reward is None]
            judged = await judge_runs(store, unscored, ruler, "ruler")
            runs = [*(one for one in runs if one.reward is not None), *judged]
        chosen = {one.id for one in runs}
        history = [one for one in mine if one.id not in chosen][:_HISTORY]
        found = compare(runs, policy, history=history, nodes=nodes)
        print(
            f"{found.grouped} runs are compared with others of their scenario, {found.single} with a running baseline; "
            f"left out: {found.unscored} without a reward, {found.no_baseline} with nothing to compare with"
        )
        if not found.groups:
            print("nothing to train on")
            raise typer.Exit(1)
        result = await trainer.train_step(policy, found.groups, GRPOConfig(lr=lr))
        store.mark_trained([one.id for one in found.trained], policy, result.version)
        metrics = result.metrics
        if skipped := metrics.get("skipped"):
            print(f"{policy} stays at version {result.version}: {skipped}")
            raise typer.Exit(1)
        print(
            f"{policy}@{result.version} is served: {metrics['completions']} completions, "
            f"mean reward {metrics['reward_mean']:.3f}"
        )


def sft_command(
    policy: Annotated[str, typer.Argument(help="Policy to start warm.")],
    file: Annotated[Path, typer.Argument(help="JSONL, one a line: {'messages': [...], 'tools': [...]}.")],
    lr: Annotated[float, typer.Option(help="Peak learning rate.", min=0.0)] = _SFT.lr,
    epochs: Annotated[int, typer.Option(help="Passes over the file.", min=1)] = _SFT.num_train_epochs,
    batch_size: Annotated[int, typer.Option(help="Rows of one update.", min=1)] = _SFT.per_device_train_batch_size,
    max_length: Annotated[int, typer.Option(help="Tokens; longer answers are skipped.", min=2)] = _SFT.max_length,
    seed: Annotated[int, typer.Option(help="Order of the rows.", min=0)] = _SFT.seed,
    train_on: Annotated[
        Literal["all", "last"], typer.Option(help="Imitate all answers of a conversation, or the last one.")
    ] = _SFT.train_on,
) -> None:
    """Start a policy warm: its next version imitates conversations, in OpenAI's fine-tuning format.

    Only what assistants said is learnt, tool calls included.
    """
    config = SFTConfig(
        lr=lr, num_train_epochs=epochs, per_device_train_batch_size=batch_size, max_length=max_length, seed=seed,
        train_on=train_on,
    )  # fmt: skip

    async def start() -> None:
        async with TrainerClient() as trainer:
            result = await trainer.sft(policy, file, config)
        metrics = result.metrics
        skipped = {**metrics["turns_skipped"], **metrics["conversations_skipped"]}
        left_out = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "nothing"
        if reason := metrics.get("skipped"):
            print(f"{policy} stays at version {result.version}: {reason}")
            raise typer.Exit(1)
        print(
            f"{policy}@{result.version} is served: {metrics['turns']} answers of {metrics['tokens_trained']} tokens, "
            f"loss {metrics['loss_first']:.3f} → {metrics['loss_last']:.3f}; left out: {left_out}"
        )

    asyncio.run(start())


def policies_command() -> None:
    """List the policies of the trainer server, with their newest versions."""

    async def show() -> None:
        async with TrainerClient() as trainer:
            table = Table("policy", "newest", "rank", "base model", "reward of the last step")
            broken: list[str] = []
            for policy in await trainer.policies():
                newest = (await trainer.versions(policy.name))[-1]
                reward = newest.metrics.get("reward_mean")
                reward = f"{reward:.3f}" if isinstance(reward, float) else ""
                table.add_row(policy.name, str(policy.latest), str(policy.spec.rank), policy.base_model, reward)
                broken += policy.quarantined.values()
            Console().print(table)
            print(*broken, sep="\n", end="\n" if broken else "")

    asyncio.run(show())


def register(root: typer.Typer) -> None:
    """Adds these commands to `art-langgraph`."""
    root.command("policies")(policies_command)
    root.command("train")(train_command)
    root.command("sft")(sft_command)
