"""Who may read the home directory of a server, and where the cache of a user is."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from trainer_server.wire import ConfigError, Home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("variables", "cache"),
    [
        ({}, "user/.cache/art-langgraph"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/art-langgraph"),
        ({"XDG_CACHE_HOME": "relative"}, "user/.cache/art-langgraph"),
        ({"XDG_CACHE_HOME": "{}/xdg", "ART_CACHE": "{}/mine"}, "mine"),
    ],
)
def test_every_home_of_a_user_has_the_same_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], cache: str
) -> None:
    for name in ("ART_HOME", "ART_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert {Home.find().cache, Home(tmp_path / "other").cache} == {tmp_path / cache}


def test_a_new_home_is_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "above" / "home")
    assert home.make_private() is None
    assert mode(home.root) == 0o700
    assert home.make_private() is None


def test_a_home_that_others_could_read_is_made_private_and_that_is_said(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.root.chmod(0o755)
    assert home.make_private() == f"other users could read {home.root} (mode 0755); now only you can (mode 0700)"
    assert mode(home.root) == 0o700


def test_a_home_that_cannot_be_made_private_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.root.chmod(0o750)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)  # as on a file system without modes
    assert "can read" in str(home.make_private())
    assert "cannot be changed" in str(home.make_private())


def test_a_directory_that_has_other_uses_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for shared, bits in ((tmp_path / "user", 0o755), (tmp_path / "tmp", 0o1777)):
        shared.mkdir()
        shared.chmod(bits)
        with pytest.raises(ConfigError, match="name a directory of its own"):
            Home(shared).make_private()
        assert mode(shared) == bits
