"""The trajectory store: several writers, and kills."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_langgraph import Scenario, Trajectory, TrajectoryGroup, TrajectoryStore
from art_langgraph.trajectory import CompletionCall
from trainer_server.wire import ConfigError


def run(scenario: str, reward: float | None = None) -> Trajectory:
    return Trajectory(scenario=Scenario(id=scenario, input={"q": "ö"}), reward=reward, output={"a": [1, None]})


def test_listing_is_newest_first_and_filters(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    added = [run("a"), run("b", 0.5), run("a", 1.0)]
    for at, one in enumerate(added):
        one.started = float(at)
        store.add(one)
    assert [one.id for one in store.list()] == [one.id for one in reversed(added)]
    assert [one.reward for one in store.list(scenario="a")] == [1.0, None]
    assert [one.reward for one in store.list(since=1.0, limit=1)] == [1.0]
    assert store.get("unknown") is None
    assert store.get(added[1].id) == added[1]


TEXTS = st.lists(st.sampled_from("a\ud83d\ude00\u2028\x85\n") | st.characters(codec=None)).map("".join)


@given(TEXTS.filter(lambda text: "\0" not in text))
def test_every_text_is_kept_also_half_surrogate_pairs(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = TrajectoryStore(Path(directory) / "s.sqlite")
        call = CompletionCall(id="c", message={"role": "assistant", "content": text}, started=0.0)
        open_run = Trajectory(scenario=Scenario(input=text))
        ended = Trajectory(scenario=Scenario(id=text or "none", input=text), graph_id=text, thread_id=text, error=text)
        with store.session() as session, session.batch() as batch:
            batch.begin(open_run)
            batch.completion(open_run.id, call)
            batch.add(ended)
        store.score(ended.id, None, error=text)
        (unfinished,) = store.unfinished()
        assert unfinished.scenario == Scenario(id=open_run.scenario.id, input=whole(text))
        assert unfinished.completions[0].message == {"role": "assistant", "content": whole(text)}
        (listed,) = store.list(graph=text, thread=text, scenario=text or "none")
        assert (listed.graph_id, listed.thread_id, listed.error) == (whole(text),) * 3


def whole(text: str) -> str:
    """A text as JSON has it: a high surrogate before a low one is one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def test_only_the_user_may_read_the_store(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "home" / "s.sqlite")
    with store.session() as session, session.batch() as batch:
        batch.add(run("a"))
        files = sorted(store.path.parent.iterdir())
        assert len(files) == 3  # with those that SQLite makes beside it
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    store.path.chmod(0o640)
    TrajectoryStore(store.path)
    assert store.path.stat().st_mode & 0o777 == 0o640


def test_a_store_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "s.sqlite", tmp_path):
        with pytest.raises(ConfigError, match=f"the trajectory store {path} cannot be opened"):
            TrajectoryStore(path)
    (tmp_path / "other").write_text("no database" * 100)
    with pytest.raises(ConfigError, match="file is not a database"):
        TrajectoryStore(tmp_path / "other")


def test_a_store_that_breaks_is_named(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    store.path.write_bytes(b"this is no database" * 100)
    for use in (lambda: store.add(run("a")), lambda: store.score("a", 1.0), store.list, lambda: len(store)):
        with pytest.raises(ConfigError, match=r"s\.sqlite cannot be used: file is not a database"):
            use()


def test_an_id_is_written_once(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    one = run("a")
    store.add(one)
    with pytest.raises(sqlite3.IntegrityError):
        store.add(one)


def test_many_threads_may_write(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.add(run(str(number))), range(100)))
    assert len(store) == 100


_WRITER = """
import sys
from art_langgraph import Scenario, Trajectory, TrajectoryStore
store = TrajectoryStore(sys.argv[1])
while True:
    one = Trajectory(scenario=Scenario(input="x"))
    store.add(one)
    print(one.id, flush=True)
"""


@pytest.mark.slow
def test_a_kill_loses_nothing_that_was_added(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    ids = [writer.stdout.readline().strip() for _ in range(20)]
    os.kill(writer.pid, signal.SIGKILL)
    ids += writer.communicate()[0].split()
    store = TrajectoryStore(path)
    assert all(store.get(one) is not None for one in ids)


def test_scores_that_come_later_are_laid_over_the_run(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    one = run("a", 0.1)
    store.add(one)
    store.score(one.id, 1.0, {"part": 1.0}, source="reviewer")
    store.score(one.id, 0.5)
    back = store.get(one.id)
    assert back is not None
    assert (back.reward, back.reward_source) == (0.5, "feedback")
    assert [found.id for found in store.list(min_reward=0.4, max_reward=0.6)] == [one.id]
    assert store.list(min_reward=0.6) == []
    with pytest.raises(KeyError):
        store.score("unknown", 1.0)


def test_a_new_score_replaces_every_reward_of_a_run(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    one = run("a", 1.5)
    one.completions = [CompletionCall(id=id, started=0, reward=reward) for id, reward in (("c1", 0.7), ("c2", None))]
    one.node_rewards, one.reward_reason, one.judgement = {"planner": 1.0, "*": 0.5}, "good", "jd-1"
    store.add(one)
    store.score(one.id, 0.0)
    back = store.get(one.id)
    assert back is not None
    assert (back.reward, back.node_rewards, back.reward_reason, back.judgement) == (0.0, None, None, None)
    assert [call.reward for call in back.completions] == [None, None]


@pytest.mark.parametrize("by", ["score_run", "score_group"])
def test_all_rewards_of_a_scored_run_are_stored(tmp_path: Path, by: str) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    one = run("a")
    one.completions = [CompletionCall(id=id, started=0) for id in ("c1", "c2")]
    store.add(one)
    one.reward, one.node_rewards, one.metrics = 1.2, {"planner": 1.0, "*": 0.2}, {"planner": 1.0, "*": 0.2}
    one.independent_reward_error = "KeyError: 'answer'"
    one.reward_reason, one.judgement, one.completions[1].reward = "the half pair \ud83d", "jd-1", 0.3
    if by == "score_run":
        store.score_run(one, "mine")
    else:
        store.score_group(TrajectoryGroup(scenario=one.scenario, trajectories=[one]), "mine")
    back = store.get(one.id)
    assert back is not None
    assert list(back.node_rewards or {}) == ["planner", "*"]
    one.reward_source = "mine"
    assert back == one


def test_a_group_is_scored_whole_or_not_at_all(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    known, unknown = run("a"), run("a", 1.0)
    store.add(known)
    with pytest.raises(KeyError):
        store.score_group(
            TrajectoryGroup(scenario=known.scenario, trajectories=[known.model_copy(update={"reward": 1.0}), unknown])
        )
    assert [one.reward for one in store] == [None]


def test_the_score_that_was_given_last_counts_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    one = run("a")
    store.add(one)
    for now, reward in ((2000.0, 0.1), (1000.0, 0.9)):
        monkeypatch.setattr("art_langgraph.store.time.time", lambda now=now: now)
        store.score(one.id, reward)
    assert [one.reward for one in store] == [0.9]


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused(tmp_path: Path, reward: float) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    one = run("a")
    store.add(one)
    with pytest.raises(ConfigError, match=f"the reward of {one.id} is {reward}"):
        store.score(one.id, reward)


def test_metrics_that_are_not_finite_are_read_back(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    one = run("a")
    one.metrics = {"ratio": float("inf")}
    store.add(one)
    store.score(one.id, 1.0, {"ratio": float("-inf")})
    assert [one.metrics for one in store] == [{"ratio": float("-inf")}]


def test_the_runs_of_a_step_are_free_again_when_it_makes_no_version(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    for step in ("made", "skipped", "open"):
        store.begin_step("p", step, [f"{step}-1", f"{step}-2"])
    store.begin_step("p", "open", ["open-3"])
    assert store.open_steps("p") == ["made", "skipped", "open"]
    store.end_step("p", "made", 3)
    store.end_step("p", "skipped", None)
    assert store.open_steps("p") == ["open"]
    assert store.trained("p") == {"made-1", "made-2", "open-3"}
    assert (store.trained("other"), store.open_steps("other")) == (set(), [])
    store.end_step("p", "skipped", 4)  # another process had looked too early
    assert {"skipped-1", "skipped-2"} <= store.trained("p")


def test_filters(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    good, bad = run("a"), run("b")
    good.graph_id, good.thread_id, good.run_id = "g", "t", "r"
    bad.error = "ValueError: x"
    store.add(good)
    store.add(bad)
    assert [one.id for one in store.list(graph="g")] == [good.id]
    assert [one.id for one in store.list(thread="t", run="r")] == [good.id]
    assert [one.id for one in store.list(error=True)] == [bad.id]
    assert [one.id for one in store.list(error=False)] == [good.id]
    found = store.find("r")
    assert found is not None
    assert found.id == good.id


_CUT_OFF = """
import os, sys
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph
from art_langgraph import TrajectoryStore, install
from art_langgraph.capture import flush
install(TrajectoryStore(sys.argv[1]))
model = FakeListChatModel(responses=["first", "second"])
def node(state):
    model.invoke("x")
    model.invoke("y")
    flush()
    os.kill(os.getpid(), 9)
StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile().invoke({"messages": [("user", "hi")]})
"""


@pytest.mark.slow
def test_a_killed_run_keeps_its_finished_completions(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    done = subprocess.run([sys.executable, "-c", _CUT_OFF, str(path)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = TrajectoryStore(path)
    assert len(store) == 0
    (cut,) = store.unfinished()
    assert [(one.message or {})["content"] for one in cut.completions] == ["first", "second"]
    assert cut.error == "the run has not ended"
    assert store.get(cut.id) == cut


def test_a_version_keeps_its_first_evaluation(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    for version, ids in ((3, ["a", "b"]), (0, ["c"]), (3, ["d"])):
        store.add_evaluation("key", version, ids)
    store.add_evaluation("other", 1, ["e"])
    assert list(store.evaluations("key").items()) == [(3, ["a", "b"]), (0, ["c"])], "in the order of their making"
    assert store.evaluations("none") == {}
