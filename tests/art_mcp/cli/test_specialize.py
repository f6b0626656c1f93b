"""What the commands say of options that cannot be used."""

from __future__ import annotations

import inspect

from typer.testing import CliRunner

from art_langgraph.cli.main import build
from art_mcp.cli.specialize import specialize_command
from art_mcp.specialization.settings import TrainingSettings
from trainer_server.wire import ConfigError


def test_the_command_trains_with_the_settings_that_python_has() -> None:
    asked, given = inspect.signature(specialize_command).parameters, TrainingSettings()
    assert (asked["groups_per_step"].default, asked["n"].default, asked["lr"].default) == (
        given.groups_per_step,
        given.n,
        given.lr,
    )


def test_the_commands_say_what_is_wrong_with_their_options() -> None:
    runner = CliRunner()
    for words, why in (
        (["specialize", "x", "--isolation", "none"], "neither shared nor session"),
        (["specialize", "x", "--scenarios", "0"], "at least one"),
        (["specialize", "x", "--scenarios", "missing.jsonl"], "neither a number nor a file"),
        (["scenarios", "x", "--header", "secret"], "Name: value"),
        (["scenarios", "x", "--header", "@missing.txt"], "missing.txt cannot be read: No such file"),
        (["scenarios", "x", "--header", "Authorization: @missing.txt"], "missing.txt cannot be read: No such file"),
        (["scenarios", "x", "--env", "ART_NO_SUCH_VARIABLE"], "ART_NO_SUCH_VARIABLE is not set"),
        (["scenarios", "x", "--env", "=x"], "--env takes NAME"),
        (["scenarios", "x {world:a}"], "{world:a} stands for a place of a world, and none is given: --world PATH"),
        (["scenarios", "x", "-o", "/dev/null"], "/dev/null exists, and would be overwritten"),
        (["scenarios", "https://x", "--env", "A=x"], "env and cwd are for commands"),
    ):
        result = runner.invoke(build(), words)
        assert isinstance(result.exception, ConfigError)
        assert why in str(result.exception)
