"""load_graph: what a langgraph.json may name, as graphs that rollouts take."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import load_graph, rollout
from trainer_server.wire import ConfigError

GRAPHS = """
import contextlib
from langgraph.graph import START, MessagesState, StateGraph
from shared_words import word

builder = StateGraph(MessagesState).add_node("say", lambda state: {"messages": [("ai", word)]}).add_edge(START, "say")
graph = builder.compile()

def make(config):
    assert config == {"configurable": {}}
    return builder

async def later():
    return graph

@contextlib.asynccontextmanager
async def lent(config):
    yield graph

nothing = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose graphs import from a folder that is a dependency."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "shared_words.py").write_text("word = 'hello'\n")
    (tmp_path / "graphs.py").write_text(GRAPHS)
    names = ("graph", "builder", "make", "later", "lent", "nothing", "missing")
    graphs = {name: f"./graphs.py:{name}" for name in names}
    (tmp_path / ".env").write_text("PROJECT_WORD=from the file\nPROJECT_KEPT=from the file\n")
    given = {"graphs": graphs, "dependencies": ["./lib"], "env": ".env"}
    (tmp_path / "langgraph.json").write_text(json.dumps(given))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PROJECT_KEPT", "from outside")
    monkeypatch.delenv("PROJECT_WORD", raising=False)
    yield tmp_path
    os.environ.pop("PROJECT_WORD", None)
    sys.modules.pop("shared_words", None)


@pytest.mark.parametrize("name", ["graph", "builder", "make", "later", "lent"])
async def test_a_graph_a_builder_and_functions_that_make_one_can_be_run(folder: Path, name: str) -> None:
    run = await rollout(load_graph(folder, name), "Hello?")
    assert (run.final_text, run.error) == ("hello", None)


def test_variables_of_the_project_are_set_where_they_are_not(folder: Path) -> None:
    load_graph(folder / "langgraph.json", "graph")
    assert (os.environ["PROJECT_WORD"], os.environ["PROJECT_KEPT"]) == ("from the file", "from outside")


@pytest.mark.parametrize(
    ("name", "message"), [("nothing", "is a int, neither a graph"), ("missing", "cannot be imported")]
)
def test_what_is_no_graph_is_refused(folder: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_graph(folder, name)


def test_a_module_is_named_by_its_import(folder: Path) -> None:
    given: dict[str, Any] = {"graphs": {"agent": "a_module_of_tests:graph"}, "dependencies": ["./lib"]}
    (folder / "langgraph.json").write_text(json.dumps(given))
    (folder / "lib" / "a_module_of_tests.py").write_text(GRAPHS)
    try:
        assert type(load_graph(folder)).__name__ == "CompiledStateGraph"
    finally:
        sys.modules.pop("a_module_of_tests", None)
