"""The path that a model sees, and the path of a copy."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from art_mcp.worlds.alias import Aliases, Translation
from art_mcp.worlds.place import Place
from trainer_server.wire import ConfigError

ROOT = "/tmp/a b/é/w1x/7"
ALIASES = Aliases([Place("repo", Path("/home/me/repo"), "repository"), Place("shop.db", Path("/srv/s.db"), "database")])
TRANSLATION = Translation(ROOT, ALIASES)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("/world/repo", f"{ROOT}/world/repo"),
        ("/world/repo/a/b.txt", f"{ROOT}/world/repo/a/b.txt"),
        ("See /world/repo.", f"See {ROOT}/world/repo."),
        ("select '/world/shop.db'", f"select '{ROOT}/world/shop.db'"),
        ("file:///world/repo/a", f"file://{ROOT}/world/repo/a"),
        ("{world:repo}/x", f"{ROOT}/world/repo/x"),
        ("/home/me/repo/x", f"{ROOT}/world/repo/x"),
        ("cd /home/me/repo && ls", f"cd {ROOT}/world/repo && ls"),
        ("/world", f"{ROOT}/world"),
        ('{"path": "\\/world\\/repo"}', '{"path": "' + ROOT.replace("/", "\\/") + '\\/world\\/repo"}'),
        ("{world} {name}", "{world} {name}"),
    ],
)
def test_what_a_model_says_becomes_the_path_of_the_copy(said: str, meant: str) -> None:
    assert TRANSLATION.to_copy({"path": [said]}) == {"path": [meant]}


@pytest.mark.parametrize(
    "other",
    ["/worlds", "/world.txt", "/world-2/x", "a/world/repo", "../world/x", "https://x.org/world/y", "/home/me/repo2",
     "/home/me/repo.git/x", "/mnt/home/me/repo", "~/world", "hello, world/peace"],
)  # fmt: skip
def test_other_paths_stay_as_they_are(other: str) -> None:
    assert TRANSLATION.to_copy(other) == other


@pytest.mark.parametrize("write", [str, json.dumps, lambda text: text.replace("/", "\\/"), lambda text: f"<{text}>"])
def test_results_name_the_alias_however_the_path_is_written(write: Any) -> None:
    assert TRANSLATION.from_copy({"text": write(f"{ROOT}/world/repo/a")}) == {"text": write("/world/repo/a")}
    assert TRANSLATION.from_copy(f"in {ROOT}: nothing") == "in /: nothing"
    url = "file:///tmp/a%20b/%C3%A9/w1x/7/world/repo"
    assert TRANSLATION.from_copy([url, 3, None]) == ["file:///world/repo", 3, None]


def test_what_is_said_comes_back_as_it_was_said() -> None:
    rng, pieces = (
        random.Random(0),
        ["/world", "/repo", "/", "shop.db", " ", '"', "\\", ".", "-", "x", "{}", ":", "file://"],
    )
    for _ in range(2000):
        text = "".join(rng.choices(pieces, k=rng.randrange(8)))
        assert TRANSLATION.from_copy(TRANSLATION.to_copy(text)) == text


def test_a_placeholder_must_name_one_place() -> None:
    with pytest.raises(ConfigError, match=r"\{world\} names no single place .* \{world:repo\}, \{world:shop.db\}"):
        ALIASES.text("--path {world}")
    with pytest.raises(ConfigError, match="world:other"):
        ALIASES.text("{world:other}")
    assert Aliases([Place("one", Path("/x"), "file")]).value({"a": ["{world}", 1]}) == {"a": ["/world/one", 1]}


def test_a_path_that_leads_out_of_the_world_is_not_translated() -> None:
    for out in ("/world/../../0/world/repo/a", "/world/repo/../../x", "\\/world\\/..\\/x"):
        assert TRANSLATION.to_copy(out) == out
    assert TRANSLATION.to_copy("/world/repo/a/../b") == f"{ROOT}/world/repo/a/../b"


def test_originals_are_replaced_beside_a_placeholder_that_names_nothing() -> None:
    assert TRANSLATION.to_copy("{world:other} /home/me/repo") == f"{{world:other}} {ROOT}/world/repo"


@pytest.mark.parametrize(
    "said", ["/home//me/repo/x", "sqlite:////home/me/repo/x", "-v/home/me/repo/x:/x", "~/repo/x", "/short/repo/x"]
)
def test_an_original_is_found_however_a_command_spells_it(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    places = [Place("repo", Path("/home/me/repo"), "repository", given_path=Path("/short/repo"))]
    meant = Translation(ROOT, Aliases(places)).word(said)
    assert f"{ROOT}/world/repo/x" in meant
    assert "me/repo" not in meant


def test_a_placeholder_of_a_command_is_the_path_of_the_copy_whatever_stands_before() -> None:
    assert TRANSLATION.word("sqlite:///{world:shop.db}") == f"sqlite:///{ROOT}/world/shop.db"
    assert TRANSLATION.word("x{world:shop.db}") == f"x{ROOT}/world/shop.db"
