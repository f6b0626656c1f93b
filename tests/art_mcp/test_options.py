"""An option is declared once: keywords, their meaning and the flags of the commands derive from dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from art_langgraph.loop.options import markdown_table
from art_mcp import connect, generate_scenarios, measure_difficulty, specialize
from art_mcp.cli.scenarios import ScenarioFlags, scenarios_command
from art_mcp.cli.specialize import TrainingFlags, specialize_command
from art_mcp.client.connect import ConnectOptions
from art_mcp.options import AgentOptions, SetOptions, TaskOptions, TrainingOptions
from art_mcp.scenarios.generate import ScenarioOptions
from art_mcp.specialization.settings import GenerationSettings, RunSettings, SpecializeOptions, TrainingSettings
from art_mcp.specialization.stages.measurement import DifficultyOptions
from trainer_server.common.options import help_of

FUNCTIONS: dict[Callable[..., Any], Any] = {
    connect: ConnectOptions,
    generate_scenarios: ScenarioOptions,
    specialize: SpecializeOptions,
    measure_difficulty: DifficultyOptions,
}


@pytest.mark.parametrize(("function", "options"), FUNCTIONS.items(), ids=lambda item: item.__name__)
def test_each_keyword_has_a_type_a_meaning_and_a_row_in_a_table(function: Callable[..., Any], options: Any) -> None:
    names = {option.name for option in fields(options)}
    assert inspect.signature(function).parameters.keys() == names
    assert all(help_of(options).values())
    for name in names:
        assert f"\n    {name}: " in str(function.__doc__)
        assert f"| `{name}` |" in markdown_table(options)


@pytest.mark.parametrize(
    ("function", "word", "match"),
    [
        (connect, "world", "worlds"),
        (generate_scenarios, "resource", "resources"),
        (specialize, "minute", "minutes"),
        (measure_difficulty, "versions", "version"),
    ],
)
def test_a_misspelt_keyword_is_refused_with_the_nearest_name(
    function: Callable[..., Any], word: str, match: str
) -> None:
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got .* '{word}': did you mean {match}=…\?"):
        function("x", **{word: 1})


@pytest.mark.parametrize("settings", [GenerationSettings, TrainingSettings, RunSettings])
def test_the_settings_of_a_stage_have_meanings(settings: Any) -> None:
    assert all(help_of(settings).values())


@pytest.mark.parametrize(
    ("command", "flags", "options"),
    [
        (scenarios_command, ScenarioFlags, SetOptions),
        (specialize_command, TrainingFlags, TrainingOptions),
        (specialize_command, AgentOptions, AgentOptions),
        (specialize_command, TaskOptions, TaskOptions),
    ],
)
def test_a_command_has_a_flag_for_each_plain_option_with_its_default(command: Any, flags: Any, options: Any) -> None:
    parameters = inspect.signature(command).parameters
    defaults = {option.name: option.default for option in fields(flags)}
    for option in fields(options):
        assert parameters[option.name].default == defaults[option.name] == option.default
