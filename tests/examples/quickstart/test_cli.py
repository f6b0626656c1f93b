"""`art-langgraph quickstart`: its options."""

from __future__ import annotations

import typer
from art_examples.quickstart.cli import register
from typer.main import get_command


def test_the_number_of_held_out_scenarios_has_two_spellings() -> None:
    app = typer.Typer()
    register(app)
    (option,) = (each for each in get_command(app).params if each.name == "held_out")
    assert option.opts == ["--held-out", "--validation"]
    assert option.default is None
