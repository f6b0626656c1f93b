"""A tracker that raises or hangs stops no training, is told of once, and counted."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.patience import PATIENCE
from tests.support.runs.trackers import Hanging, Raising, Remembering, Unreachable, tracked
from trainer_server.tracking import Tracking


def test_trackers_are_told_of_everything_in_order(tmp_path: Path) -> None:
    one, other, said = Remembering(), Remembering(), list[str]()
    tracking = Tracking([("one", one), ("other", other)], said.append)
    run = tracked(tmp_path)
    tracking.start(run)
    tracking.log(1, {"reward": 0.5}, ["a run"])
    tracking.log(2, {"reward": 0.75})
    tracking.finish("out of time", PATIENCE)
    tracking.finish(None, PATIENCE)
    told = [
        ("start", run), ("log", 1, {"reward": 0.5}), ("trajectories", 1, ["a run"]), ("log", 2, {"reward": 0.75}),
        ("finish", "out of time"),
    ]  # fmt: skip
    assert one.told == other.told == told
    assert said == []
    assert tracking.lost_calls == {"one": 0, "other": 0}


def test_what_a_tracker_raises_is_said_once_with_the_remedy_and_counted(tmp_path: Path) -> None:
    bad, good, said = Raising(), Remembering(), list[str]()
    tracking = Tracking([("bad", bad), ("good", good)], said.append)
    tracking.start(tracked(tmp_path))
    for step in (1, 2, 3):
        tracking.log(step, {})
    tracking.finish(None, PATIENCE)
    assert bad.calls == ["start", "finish"]
    assert good.calls == ["start", "log", "log", "log", "finish"]
    assert said == [
        "the tracker 'bad' failed, and the training goes on without it being told of everything: ConnectionError: no "
        "answer to step 1. Give it another address",
        "the tracker 'bad' was not told of everything: 3 of 5 calls are lost",
    ]
    assert tracking.lost_calls == {"bad": 3, "good": 0}


def test_a_tracker_that_cannot_start_is_told_nothing_more(tmp_path: Path) -> None:
    gone, said = Unreachable(), list[str]()
    tracking = Tracking([("gone", gone)], said.append)
    tracking.start(tracked(tmp_path))
    tracking.log(1, {})
    tracking.finish(None, PATIENCE)
    assert gone.told == []
    assert "SystemExit: no key" in said[0]
    assert said[1] == "the tracker 'gone' was not told of everything: 3 of 3 calls are lost"


def test_a_tracker_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    slow, quick = Hanging(), Remembering()
    tracking = Tracking([("slow", slow), ("quick", quick)], lambda said: None)
    tracking.start(tracked(tmp_path))
    tracking.log(1, {})
    assert slow.hangs.wait(PATIENCE)
    finishing = threading.Thread(target=tracking.finish, args=(None, PATIENCE))
    finishing.start()
    assert quick.ended.wait(PATIENCE), "while the other one hangs"
    assert slow.calls == ["start"]
    slow.let_go.set()
    finishing.join(PATIENCE)
    assert tracking.lost_calls == {"slow": 0, "quick": 0}


def test_a_tracker_that_hangs_keeps_nobody_waiting(tmp_path: Path) -> None:
    slow, said = Hanging(), list[str]()
    tracking = Tracking([("slow", slow)], said.append, most=3)
    tracking.start(tracked(tmp_path))
    tracking.log(1, {})
    assert slow.hangs.wait(PATIENCE)
    for step in (2, 3, 4):
        tracking.log(step, {})
    tracking.log(5, {})  # three calls wait: this one is left out
    tracking.finish(None, 0.0)
    assert "'slow' does not keep up: 3 calls wait for it" in said[0]
    assert "'slow' was not ready 0 s after the end: 4 of its calls are left out" in said[1]
    assert tracking.lost_calls["slow"] == 6, "the one that hangs, three that wait, the one left out, and the end"
    slow.let_go.set()


def test_no_thread_is_left_where_trackers_have_finished(tmp_path: Path) -> None:
    tracking = Tracking([("left", Remembering())], print)
    tracking.start(tracked(tmp_path))
    tracking.finish(None, PATIENCE)
    assert not [thread for thread in threading.enumerate() if thread.name == "art-tracker-left"]
