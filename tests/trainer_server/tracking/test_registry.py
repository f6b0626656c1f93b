"""Trackers by name, by their place, or as objects; and what is said of those that cannot be made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.runs.trackers import Remembering
from trainer_server.tracking import JSONLTracker, Tracker, make_trackers, named_by
from trainer_server.wire import ConfigError


def test_names_places_and_objects_give_trackers() -> None:
    mine = Remembering()
    raising = "tests.support.runs.trackers:Raising"
    made = make_trackers(["jsonl", raising, mine, Remembering(), "jsonl"])
    assert [name for name, _ in made] == ["jsonl", raising, "Remembering", "Remembering-2"]
    assert isinstance(made[0][1], JSONLTracker)
    assert made[2][1] is mine


def test_the_environment_names_trackers() -> None:
    assert named_by({"ART_TRACKERS": " wandb, my.place:Tracker ,,wandb"}) == ["wandb", "my.place:Tracker"]
    assert named_by({}) == []


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("wandbb", "--tracker wandbb: there is jsonl, mlflow, tensorboard, trackio, wandb; name another as module"),
        ("no.such.module:Tracker", "no.such.module cannot be imported"),
        ("tests.support.runs.trackers:NoSuch", "has no function 'NoSuch' that makes a tracker"),
        ("tests.support.runs.trackers:a_run", "Trajectory has no finish, log, start"),
        ("tests.support.runs.trackers:tracked", "it cannot be made: TypeError: tracked() missing 1 required"),
    ],
)
def test_a_tracker_that_cannot_be_made_is_named_with_the_reason(wanted: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_trackers([wanted])
    assert message in str(raised.value)
    told: list[str] = []
    assert [name for name, _ in make_trackers([wanted, "jsonl"], skip=told.append)] == ["jsonl"]
    assert message in told[0]


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "trackio", "wandb"])
def test_a_missing_library_is_named_with_what_installs_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"needs {name}, .*pip install 'art-langgraph\[{name}\]'"):
        make_trackers([name])


def test_an_object_without_the_methods_is_refused() -> None:
    half: Tracker = Path()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="has no finish, log, start"):
        make_trackers([half])
