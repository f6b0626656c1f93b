"""What `art-langgraph` shows without a command, and how `--help` groups the commands: by what people do."""

from __future__ import annotations

import sys

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo, TyperInfo

PANELS: dict[str, tuple[str, ...]] = {
    "See it": ("demo", "quickstart"),
    "A server": ("engine", "serve", "connect", "disconnect", "doctor", "plan"),
    "Your agent": ("init", "trajectories", "threads", "import", "feedback", "score"),
    "Train": ("train", "evaluate", "sft", "autorl", "autopilot", "scenarios", "specialize"),
    "Watch": ("status", "watch", "top", "jobs"),
    "Policies and their versions": ("policies", "promote", "score-version", "export", "fork"),
    "Operate a server": ("tokens", "audit", "backup", "restore", "ledger"),
    "This program": ("version",),
}
"""The commands of each panel of `--help`, in their order."""
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_ORDER = list(_PANEL_OF)

_SERVER_HERE = (
    ("demo", "see it, without vLLM: the dashboard with a training that is made up"),
    ("quickstart", "trains the example agent for real, in minutes"),
    ("serve", "a server for your own graph: gateway, training, dashboard"),
    ("init", "beside a langgraph.json: writes train.py and scenarios.jsonl"),
    ("train", "trains on your scenarios, or on recorded runs; so does train.py"),
)
_SERVER_ELSEWHERE = (
    ("connect URL", "uses a server on a Linux machine, which `art-langgraph serve` starts there"),
    ("init", "beside a langgraph.json: writes train.py and scenarios.jsonl"),
    ("train", "trains on your scenarios, or on recorded runs; so does train.py"),
    ("watch", "what the training does; the dashboard has every run"),
    ("promote", "says which version answers"),
)
FIRST_STEPS = _SERVER_HERE if sys.platform == "linux" else _SERVER_ELSEWHERE
"""The five things that one does, in this order: the words after `art-langgraph`, and what they do."""


class CommandGroup(TyperGroup):
    """The commands in the order of the panels; those of other packages come last."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        names: list[str] = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _PANEL_OF else len(_ORDER))


def group_commands(app: typer.Typer) -> None:
    """Puts each command of a program into its panel."""
    infos: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
    for info in infos:
        if info.name in _PANEL_OF:
            info.rich_help_panel = _PANEL_OF[info.name]


def first_steps() -> str:
    """The five things that one does, a line for each."""
    width = max(len(words) for words, _ in FIRST_STEPS)
    lines = [
        f"  {number}. art-langgraph {words:{width}}   {text}" for number, (words, text) in enumerate(FIRST_STEPS, 1)
    ]
    return "\n".join(lines)
