"""Paths of a copy in the command of a server."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from art_mcp.client.connection.sdk import Stdio
from art_mcp.client.copies import placing
from art_mcp.worlds.world import World


def test_words_that_name_files_from_here_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "server").touch()
    with closing(World(tmp_path / "data", scratch=tmp_path / "w")) as world:
        world.open()
        copy = world.copy()
        absolute = partial(placing._absolute, copy=copy)
    assert absolute("server.py") == f"{tmp_path}/server.py"
    assert absolute("./data") == absolute("data/") == f"{tmp_path}/data"
    assert absolute("--dir=./data") == f"--dir={tmp_path}/data"
    for word in ("server", "data", "none.py", "--flag", "{world}/server.py", "-m", "a=./data"):
        assert absolute(word) == word
    assert os.getcwd() == str(tmp_path)


def test_a_command_that_names_no_place_of_the_world_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.json").write_text("{}")
    (tmp_path / "server.py").touch()
    world = World(tmp_path / "book.json", scratch=tmp_path / "w")
    note = placing.unnamed_world(Stdio(("python", "server.py")), world)
    assert "names /world/book.json" in str(note)
    assert "Write {world}" in str(note)
    by_name = ("{world}", "{world:book.json}", "book.json", "./book.json", "--book=book.json")
    for word in (*by_name, f"file:{tmp_path}/book.json"):
        assert placing.unnamed_world(Stdio(("python", "server.py", word)), world) is None, word
    assert placing.unnamed_world(Stdio(("server",), env={"BOOK": "{world}"}), world) is None


def test_a_world_without_contents_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert placing.unnamed_world(Stdio(("server",)), World(tmp_path / "empty", scratch=tmp_path / "w")) is None
