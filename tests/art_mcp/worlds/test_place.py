"""Originals, their names and kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_mcp.worlds.place import places_of
from tests.support.mcp.originals import git, make_database
from trainer_server.wire import ConfigError


def test_places_have_names_and_kinds(tmp_path: Path) -> None:
    (tmp_path / "my notes").mkdir()
    (tmp_path / "a" / "notes").mkdir(parents=True)
    (tmp_path / "b" / "notes").mkdir(parents=True)
    git(tmp_path / "a" / "notes", "init", "-q")
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    make_database(tmp_path / "shop.db").close()
    (tmp_path / "new.sqlite").touch()
    (tmp_path / "memory.jsonl").touch()
    given = [tmp_path / "my notes", tmp_path / "a" / "notes", f"old={tmp_path / 'b' / 'notes'}", tmp_path / "bare.git",
             str(tmp_path / "shop.db"), tmp_path / "new.sqlite", tmp_path / "memory.jsonl"]  # fmt: skip
    assert [(place.name, place.kind) for place in places_of(given)] == [
        ("my-notes", "directory"),
        ("notes", "repository"),
        ("old", "directory"),
        ("bare.git", "repository"),
        ("shop.db", "database"),
        ("new.sqlite", "database"),
        ("memory.jsonl", "file"),
    ]


def test_a_second_place_of_a_name_gets_a_number_and_links_are_followed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "data").mkdir(parents=True)
    (tmp_path / "data").symlink_to(tmp_path / "b" / "data")
    first, second = places_of([tmp_path / "a" / "data", tmp_path / "data"])
    assert (first.name, second.name) == ("data", "data-2")
    assert second.original == (tmp_path / "b" / "data").resolve()


@pytest.mark.parametrize(
    ("given", "why"),
    [(["none"], "cannot be copied: No such file"), ([""], "cannot be copied|overlap"), ([], "at least one"),
     (["x=.", "x=.."], "overlap"), (["a b=."], "no name"), (["/dev/null"], "neither")],
)  # fmt: skip
def test_worlds_that_cannot_be(given: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if given == [""]:
        given = ["", "."]
    with pytest.raises(ConfigError, match=why):
        places_of(given)
