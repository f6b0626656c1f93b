"""Project: what a langgraph.json says, and errors that name the file and the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from art_langgraph.project.langgraph_json import Project
from trainer_server.wire import ConfigError


def project(folder: Path, **given: Any) -> Project:
    (folder / "langgraph.json").write_text(json.dumps(given))
    return Project.read(folder)


def test_graphs_environment_and_dependencies(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "agent.py").touch()
    found = project(
        tmp_path,
        graphs={"chat": {"path": "./src/agent.py:graph", "description": "talks"}, "other": "a.module:make"},
        env=".env",
        dependencies=[".", "./src", "langchain-openai"],
    )
    assert found.environment == tmp_path / ".env"
    assert found.dependencies == (tmp_path, tmp_path / "src")
    assert [str(found.place(name)[1]) for name in ("chat", "other")] == [
        f"{tmp_path}/src/agent.py:graph",
        "a.module:make",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, 'names no graph: it needs "graphs"'),
        ({"graphs": {"a": 3}}, "the graph 'a' is 3"),
        ({"graphs": {"a": "agent.py"}}, "and not path.py:variable"),
        ({"graphs": {"a": "./agent.ts:graph"}}, "only graphs in Python"),
        ({"graphs": {"a": "./agent.py:graph"}}, "the file of the graph 'a' is missing"),
        ({"graphs": {"a": "x:y", "b": "x:z"}}, "has the graphs a, b: say which"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        project(tmp_path, **given).place()


def test_a_folder_without_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name the folder of a project that has one"):
        Project.read(tmp_path)
    (tmp_path / "langgraph.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Project.read(tmp_path)
