"""Paths of a copy in the command of a server."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

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
