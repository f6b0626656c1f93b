"""`art-langgraph autopilot`: candidates are trained, tried and promoted beside production."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import StepFlags, StoreOption, load_object, with_flags
from art_langgraph.cli.printing import print_json
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from art_langgraph.auto_pilot.pilot import Autopilot
    from art_langgraph.auto_pilot.state import Entry
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.trajectory import Trajectory

_GATE, _CANARY, _ACTIONS = "Gate", "Canary", "Single actions"


@with_flags
def autopilot_command(
    policy: Annotated[str, typer.Option(help="Policy to fly.")],
    step: Annotated[StepFlags, None],
    train_every: Annotated[
        int, typer.Option("--train-every", help="Train a candidate after so many new runs with a reward.", min=1)
    ] = 50,
    gate: Annotated[
        Path | None,
        typer.Option(
            "--gate",
            help="Scenarios (JSONL) that a candidate is measured on before it answers anybody. Runs that ask the same "
            "are never trained on.",
            rich_help_panel=_GATE,
        ),
    ] = None,
    graph_object: Annotated[
        str | None,
        typer.Option(
            "--graph-object",
            help="Graph that runs the scenarios of the gate, as module:graph. Without one, the canary alone decides.",
            rich_help_panel=_GATE,
        ),
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="Reward of those runs, as module:function.", rich_help_panel=_GATE)
    ] = None,
    gate_name: Annotated[
        str,
        typer.Option(
            "--gate-name",
            help="Name of the gate's measurements. Under another one, versions are measured anew: give one where the "
            "graph was changed, which is not noticed.",
            rich_help_panel=_GATE,
        ),
    ] = "",
    tolerance: Annotated[
        float,
        typer.Option(help="How much lower its success on the gate may be.", min=0.0, max=0.99, rich_help_panel=_GATE),
    ] = 0.0,
    canary: Annotated[
        str, typer.Option(help="A candidate's share of the new rollouts: 10% or 0.1.", rich_help_panel=_CANARY)
    ] = "10%",
    success: Annotated[
        float, typer.Option(help="A run with at least this reward succeeded.", rich_help_panel=_CANARY)
    ] = 1.0,
    alpha: Annotated[
        float,
        typer.Option(help="Probability, at most, of promoting a candidate that is no better.", rich_help_panel=_CANARY),
    ] = 0.05,
    min_runs: Annotated[
        int,
        typer.Option("--min-runs", help="Its scored runs before it is decided.", min=1, rich_help_panel=_CANARY),
    ] = 20,
    max_runs: Annotated[
        int,
        typer.Option(
            "--max-runs",
            help="Its scored runs after which it is rolled back, if it is not shown to be better by then.",
            min=1,
            rich_help_panel=_CANARY,
        ),
    ] = 2000,
    node: Annotated[list[str] | None, typer.Option(help="Train only this node; repeatable, patterns allowed.")] = None,
    from_ledger: Annotated[
        bool,
        typer.Option(
            "--from-ledger",
            help="Runs are rollouts of the trainer server that were given a reward by HTTP or `session`, not those of "
            "the trajectory store.",
        ),
    ] = False,
    max_age: Annotated[float, typer.Option("--max-age", help="Days. Older runs are not trained on.", min=0.0)] = 7.0,
    poll: Annotated[float, typer.Option(help="Seconds between two looks for new runs and rewards.", min=0.0)] = 10.0,
    store: StoreOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it is paused.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Do what can be done now, and end: for cron.", rich_help_panel=_ACTIONS)
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Print where it is, and end.", rich_help_panel=_ACTIONS)
    ] = False,
    show_log: Annotated[
        bool,
        typer.Option(
            "--log", help="Print all that it did, with reasons and numbers, and end.", rich_help_panel=_ACTIONS
        ),
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Roll the present candidate back, and end.", rich_help_panel=_ACTIONS)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")] = False,
) -> None:
    """Improve a policy beside production: train candidates on rewarded runs, try each, promote it or roll it back.

    Runs come from the trajectory store that a running `langgraph dev` or deployment writes; `feedback` and `score` give
    them rewards, at any time. After --train-every new ones, a candidate is trained from the promoted version. It is
    measured on the gate, then it answers a share of the new rollouts (--canary), each of which stays with its version.
    Success is compared by a test that holds whenever one looks. Whatever is decided is written down with its reason.

    POLICY is what is promoted, POLICY@latest the newest version. A version that you promote by hand ends a candidate,
    stays, and pauses the autopilot. Alarms pause it too, with a remedy. --resume goes on.

    Ctrl-C, a crash or a restart loses nothing: the same command goes on. A candidate that is tried keeps its share
    meanwhile; --stop ends that.

    Example: art-langgraph autopilot --policy agent --train-every 50 --gate held_out.jsonl --graph-object my_agent:graph
    --reward my_agent:reward --canary 10%
    """
    from art_langgraph.auto_pilot.decision import CanaryRules
    from art_langgraph.auto_pilot.pilot import Autopilot
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.store import TrajectoryStore

    if [once, status, show_log, stop].count(True) > 1:
        raise ConfigError("--once, --status, --log and --stop exclude one another")

    def succeeded(run: Trajectory) -> bool:
        return run.reward is not None and run.reward >= success

    def build_pilot(trainer: TrainerClient) -> Autopilot:
        return Autopilot(
            policy=policy,
            client=trainer,
            store=TrajectoryStore(store),
            train_every=train_every,
            gate=gate,
            graph=load_object(graph_object) if graph_object else None,
            reward=load_object(reward) if reward else None,
            gate_name=gate_name,
            canary=canary,
            success=succeeded,
            rules=CanaryRules(alpha=alpha, least=min_runs, most=max_runs, tolerance=tolerance),
            config=step.config(),
            nodes=node,
            from_ledger=from_ledger,
            max_age=max_age,
            poll=poll,
        )

    async def fly() -> None:
        async with TrainerClient() as trainer:
            pilot = build_pilot(trainer)
            if status:
                return _show(await pilot.status(), as_json)
            if show_log:
                return _print_entries(pilot.state_store.history(), as_json)
            if stop:
                return await _stop(pilot, as_json)
            paused = state.pause if (state := await asyncio.to_thread(pilot.state_store.state)) else None
            if paused and not resume and not (sys.stdin.isatty() and typer.confirm(f"Paused. {paused}\nGo on?")):
                raise ConfigError(f"the autopilot of {policy!r} is paused: {paused}. --resume goes on")
            if once:
                await _once(pilot, as_json, resume=paused is not None)
            else:
                async for entry in pilot.run(resume=paused is not None):
                    _print_entries([entry], as_json)
            if (state := await asyncio.to_thread(pilot.state_store.state)) and state.pause:
                raise typer.Exit(1)

    try:
        asyncio.run(fly())
    except KeyboardInterrupt:
        print(
            "stopped; the same command goes on. A candidate that is tried keeps its share until then", file=sys.stderr
        )
        raise typer.Exit(130) from None


_NO_CANDIDATE: dict[str | None, str] = {
    "training": "there is no candidate yet: a step is under way, and the next start of the autopilot goes on with it. "
    "`art-langgraph jobs list` shows it, `art-langgraph jobs cancel` ends it",
    "deciding": "the candidate is decided: the next start of the autopilot carries it out",
}
"""What `--stop` says, by the phase."""


async def _once(pilot: Autopilot, as_json: bool, *, resume: bool) -> None:
    async with pilot.state_store.alone():
        if resume:
            _print_entries(await pilot.resume(), as_json)
        while entries := await pilot.advance():
            _print_entries(entries, as_json)


async def _stop(pilot: Autopilot, as_json: bool) -> None:
    async with pilot.state_store.alone():
        if not await pilot.stop():
            state = await asyncio.to_thread(pilot.state_store.state)
            why = _NO_CANDIDATE.get(state.phase if state else None, "there is no candidate")
            if as_json:
                print_json({"stopped": False, "why": why})
            else:
                print(why)
            return
        _print_entries(await pilot.advance(), as_json)


def _print_entries(entries: Iterable[Entry], as_json: bool) -> None:
    for entry in entries:
        print(entry.model_dump_json() if as_json else entry, flush=True)


def _show(report: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    for name, value in report.items():
        print(f"{name}: {json.dumps(value) if isinstance(value, dict) else value}")
