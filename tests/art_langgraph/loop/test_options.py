"""An option is declared in one place: keywords, flags, the tables of the docs and what a run records derive from it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields

import pytest

from art_langgraph import compare_versions, evaluate, gather, rollout, train
from art_langgraph.cli.train import LoopFlags
from art_langgraph.client.demonstrations import check_keywords
from art_langgraph.client.jobs import StepOptions
from art_langgraph.loop.options import LoopOptions
from art_langgraph.loop.train import TrainOptions
from tests.support.option_tables import PAGES, TABLE, renew
from trainer_server.common.options import help_of

PLANTED = """
import importlib.util, inspect, sys
from typer.main import get_command

name = "art_langgraph.loop.options"
spec = importlib.util.find_spec(name)
source = open(spec.origin, encoding="utf-8").read()
for line, option in (
    ("        steps: Steps of the loop", "        warmth: How warm the steps are.\\n"),
    ("    steps: int = field(", "    warmth: int = field(default=3, metadata={'min': 1})\\n"),
):
    assert source.count(line) == 1
    source = source.replace(line, option + line)
module = sys.modules[name] = importlib.util.module_from_spec(spec)
exec(compile(source, spec.origin, "exec"), vars(module))

from art_langgraph import TrainerClient, train
from art_langgraph.cli.main import build
from art_langgraph.loop.train import TrainingLoop, TrainOptions
from art_mcp.specialization.settings import fingerprint

options = TrainOptions(lambda _: None, ["a"], policy="agent", reward=len, steps=1, groups_per_step=1,
                       client=TrainerClient("http://127.0.0.1:1", "key"), warmth=5)
print(inspect.signature(train).parameters["warmth"])
print(next(row for row in module.markdown_table(TrainOptions).splitlines() if "warmth" in row))
print(next(flag for flag in get_command(build()).commands["train"].params if flag.name == "warmth").help)
print(TrainingLoop(options).record()["warmth"], fingerprint(train=options)["train.warmth"])
"""


def test_an_option_that_is_added_in_one_place_is_found_in_all() -> None:
    done = subprocess.run([sys.executable, "-c", PLANTED], capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "warmth: 'int' = 3",
        "| `warmth` | `int` | `3` | How warm the steps are. |",
        "How warm the steps are.",
        "5 5",
    ]


def test_the_docs_have_the_tables_that_the_dataclasses_make() -> None:
    pages = {path.name: path.read_text() for path in PAGES.glob("*.md")}
    assert sum(len(TABLE.findall(page)) for page in pages.values()) == 11
    for name, page in pages.items():
        assert page == renew(page), f"docs/reference/{name}: python -m tests.support.option_tables"


def test_the_command_line_reads_each_plain_option_of_the_loop() -> None:
    flags = {option.name: option for option in fields(LoopFlags)}
    for option in fields(LoopOptions):
        assert flags[option.name].type == option.type
        assert option.name == "steps" or flags[option.name].default == option.default


def test_each_keyword_has_a_meaning_and_help_shows_it() -> None:
    assert list(help_of(TrainOptions)) != []
    assert {option.name for option in fields(TrainOptions)} == help_of(TrainOptions).keys()
    for function in (rollout, gather, evaluate, compare_versions, train):
        for name in inspect.signature(function).parameters:
            assert f"\n    {name}: " in str(function.__doc__)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"polcy": "agent"}, r"train\(\) got an unexpected keyword argument 'polcy': did you mean policy=…\?"),
        ({"group_per_step": 2}, r"did you mean groups_per_step=…\?"),
        ({"xyz": 2}, r"unexpected keyword argument 'xyz'$"),
        ({"policy": "agent"}, r"train\(\): missing a required argument"),
    ],
)
def test_a_misspelt_or_missing_keyword_is_refused_before_anything_runs(
    keywords: dict[str, object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        train(lambda _: None, ["a"], **keywords)  # type: ignore[arg-type, call-arg]


def test_a_keyword_of_another_call_is_refused_without_itself_as_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'progress'$"):
        check_keywords({"progress": False}, StepOptions)
    with pytest.raises(TypeError, match=r"'progres': did you mean progress=…\?"):
        check_keywords({"progres": False}, StepOptions)
