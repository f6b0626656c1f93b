"""`art-langgraph autopilot`: candidates are trained, tried and promoted beside production."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.auto_pilot.options import GATE, CanaryRules, PilotOptions
from art_langgraph.cli.options import NodeFlags, StoreOption, load_function, load_object
from art_langgraph.cli.printing import print_json, print_outcome
from art_langgraph.loop.options import values_of
from trainer_server.common.options import with_flags
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from art_langgraph.auto_pilot.pilot import Autopilot
    from art_langgraph.auto_pilot.state import Entry
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.trajectory import Scenario, Trajectory

_CANARY = "Canary"


@dataclass(kw_only=True)
class PilotFlags(PilotOptions):
    """The autopilot on the command line: its options, and what is written there in another form than in Python.

    Args:
        policy: The policy that is trained and canaried.
        gate: Scenarios (JSONL) that a candidate is measured on before it answers anybody. Runs that ask the same are
            never trained on.
        graph_object: Graph that runs the scenarios of the gate, as module:graph. Without one, the canary alone decides.
        reward: Reward of those runs, as module:function.
        canary: A candidate's share of the new rollouts: 10% or 0.1.
        success: A run with at least this reward succeeded.
    """

    policy: str
    gate: Path | None = field(default=None, metadata={"rich_help_panel": GATE})
    graph_object: str | None = field(default=None, metadata={"rich_help_panel": GATE})
    reward: str | None = field(default=None, metadata={"rich_help_panel": GATE})
    canary: str = field(default="10%", metadata={"rich_help_panel": _CANARY})
    success: float = field(default=1.0, metadata={"rich_help_panel": _CANARY})

    def succeeded(self, run: Trajectory) -> bool:
        """Whether a run of the deployment succeeded that has a reward."""
        return run.reward is not None and run.reward >= self.success

    def pilot(
        self,
        trainer: TrainerClient,
        gate: list[Scenario] | None,
        step: NodeFlags,
        rules: CanaryRules,
        store: str | None,
    ) -> Autopilot:
        """The autopilot. gate: The scenarios of the file. Raises ConfigError where an object cannot be read, or a
        setting is out of range."""
        from art_langgraph.auto_pilot.pilot import Autopilot
        from art_langgraph.store import TrajectoryStore

        return Autopilot(
            self.policy,
            trainer,
            store=TrajectoryStore(store),
            gate=gate,
            graph=load_object(self.graph_object) if self.graph_object else None,
            reward=load_function(self.reward) if self.reward else None,
            canary=self.canary,
            success=self.succeeded,
            rules=rules,
            config=step.config(),
            nodes=step.node,
            **values_of(self, PilotOptions),
        )


@dataclass(frozen=True, kw_only=True)
class ActionFlags:
    """What the command does in place of running until the autopilot is paused.

    Args:
        once: Do what can be done now, and end: for cron.
        status: Print where it is, and end.
        history: Print all that it did, with reasons and numbers, and end.
        stop: Roll the present candidate back, and end.
    """

    once: bool = False
    status: bool = False
    history: bool = field(default=False, metadata={"flag": "--log"})
    stop: bool = False


@with_flags
def autopilot_command(
    flags: Annotated[PilotFlags, None],
    step: Annotated[NodeFlags, None],
    rules: Annotated[CanaryRules, _CANARY],
    actions: Annotated[ActionFlags, "Single actions"],
    store: StoreOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it is paused.")] = False,
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
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.datasets import load_scenarios

    if [actions.once, actions.status, actions.history, actions.stop].count(True) > 1:
        raise ConfigError("--once, --status, --log and --stop exclude one another")

    gate = load_scenarios(flags.gate) if flags.gate else None

    async def run() -> None:
        async with TrainerClient() as trainer:
            await _run(flags.pilot(trainer, gate, step, rules, store), actions, resume=resume, as_json=as_json)

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        print(
            "stopped; the same command goes on. A candidate that is tried keeps its share until then", file=sys.stderr
        )
        raise typer.Exit(130) from None


async def _run(pilot: Autopilot, actions: ActionFlags, *, resume: bool, as_json: bool) -> None:
    """Does one action, or runs the autopilot until it is paused. Raises typer.Exit with 1 where it is paused then."""
    if actions.status:
        return _print_status(await pilot.status(), as_json)
    if actions.history:
        return _print_entries(pilot.state_store.history(), as_json)
    if actions.stop:
        return await _stop(pilot, as_json)
    pause = state.pause if (state := await asyncio.to_thread(pilot.state_store.state)) else None
    if pause and not resume and not (sys.stdin.isatty() and typer.confirm(f"Paused. {pause}\nGo on?")):
        raise ConfigError(f"the autopilot of {pilot.policy!r} is paused: {pause}. --resume goes on")
    if actions.once:
        await _once(pilot, as_json, resume=pause is not None)
    else:
        async for entry in pilot.run(resume=pause is not None):
            _print_entries([entry], as_json)
    if (state := await asyncio.to_thread(pilot.state_store.state)) and state.pause:
        raise typer.Exit(1)


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
            return print_outcome({"stopped": False, "why": why}, why, as_json)
        _print_entries(await pilot.advance(), as_json)


def _print_entries(entries: Iterable[Entry], as_json: bool) -> None:
    for entry in entries:
        print(entry.model_dump_json() if as_json else entry, flush=True)


def _print_status(report: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    for name, value in report.items():
        print(f"{name}: {json.dumps(value) if isinstance(value, dict) else value}")


def register(app: typer.Typer) -> None:
    """Adds this command to `art-langgraph`."""
    app.command("autopilot")(autopilot_command)
