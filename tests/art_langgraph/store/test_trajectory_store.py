"""The trajectory store, in a file and in PostgreSQL: what it keeps, several writers, and kills."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_langgraph import Scenario, Trajectory, TrajectoryGroup, TrajectoryStore
from art_langgraph.store import DuplicateRun
from art_langgraph.trajectory import CompletionCall
from trainer_server.wire import ConfigError


def run(scenario: str, reward: float | None = None) -> Trajectory:
    return Trajectory(scenario=Scenario(id=scenario, input={"q": "ö"}), reward=reward, output={"a": [1, None]})


@pytest.fixture
def store(store_place: str) -> TrajectoryStore:
    return TrajectoryStore(store_place)


def test_listing_is_newest_first_and_filters(store: TrajectoryStore) -> None:
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(TEXTS)
def test_every_text_is_kept_also_half_surrogate_pairs(store: TrajectoryStore, text: str) -> None:
    call = CompletionCall(id="c", message={"role": "assistant", "content": text}, started=0.0)
    open_run = Trajectory(scenario=Scenario(input=text))
    ended = Trajectory(scenario=Scenario(id=text or "none", input=text), graph_id=text, thread_id=text, error=text)
    with store.session() as session, session.batch() as batch:
        batch.begin(open_run)
        batch.completion(open_run.id, call)
        batch.add(ended)
    store.score(ended.id, None, error=text)
    unfinished = store.get(open_run.id)
    assert unfinished is not None
    assert unfinished.scenario == Scenario(id=open_run.scenario.id, input=whole(text))
    assert unfinished.completions[0].message == {"role": "assistant", "content": whole(text)}
    listed = store.list(graph=text, thread=text, scenario=text or "none", limit=1)[0]
    assert (listed.id, listed.graph_id, listed.thread_id, listed.error) == (ended.id, *(whole(text),) * 3)


def whole(text: str) -> str:
    """A text as JSON has it: a high surrogate before a low one is one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def test_an_id_is_written_once(store: TrajectoryStore) -> None:
    one = run("a")
    store.add(one)
    with pytest.raises(DuplicateRun, match=one.id):
        store.add(one.model_copy(update={"output": "another"}))
    assert store.list() == [one]


def test_a_write_that_is_done_again_changes_nothing(store: TrajectoryStore) -> None:
    """As when the answer of the database to a commit was lost."""
    call = CompletionCall(id="c", started=0.0, message={"role": "assistant", "content": "hi"})
    first = Trajectory(scenario=Scenario(id="s", input="x"), thread_id="t", started=1.0)
    second = Trajectory(scenario=Scenario(id="other", input="y"), thread_id="t", started=2.0, resumes="newest")
    for _ in range(2):
        with store.session() as session, session.batch() as batch:
            for one in (first, second):
                batch.begin(one)
                batch.completion(one.id, call)
    assert [len(one.completions) for one in store.unfinished()] == [1, 1]
    for _ in range(2):
        with store.session() as session, session.batch() as batch:
            for one in (first, second):
                batch.begin(one)
                batch.completion(one.id, call)
                batch.add(one)
    assert store.unfinished() == []
    assert {one.id for one in store.parts(first.id)} == {first.id, second.id}
    with store.database.connect() as db:
        assert db.execute("SELECT count(*) FROM completions").fetchone() == (0,)


def test_a_resuming_run_has_the_reward_of_the_whole(store: TrajectoryStore) -> None:
    first = Trajectory(scenario=Scenario(id="s", input="x"), thread_id="t", started=1.0)
    second = Trajectory(scenario=Scenario(id="other", input="y"), thread_id="t", started=2.0, resumes="newest")
    store.add(first)
    store.add(second)
    store.score(second.id, 0.5)
    assert store.rewards([second.id, first.id, "unknown"]) == {first.id: 0.5, second.id: 0.5}


def test_a_limit_below_zero_is_none_at_all(store: TrajectoryStore) -> None:
    store.add(run("a", 1.0))
    assert store.list(limit=-1) == store.list(limit=-1, min_reward=0.0) == []


@pytest.mark.parametrize(
    "address",
    ["postgresql+psycopg://art:s3cret@db/art", "host=db password=s3cret", "sqlite:///s3cret", "Password = s3cret"],
)
def test_an_address_that_is_none_of_a_store_is_refused_and_not_shown(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_STORE", address)
    with pytest.raises(ConfigError, match="postgresql://USER:PASSWORD@HOST:PORT/DATABASE, without") as refused:
        TrajectoryStore()
    assert "s3cret" not in str(refused.value)


def test_many_threads_may_write(store: TrajectoryStore) -> None:
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
def test_a_kill_loses_nothing_that_was_added(store: TrajectoryStore, store_place: str) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, store_place], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    ids = [writer.stdout.readline().strip() for _ in range(20)]
    os.kill(writer.pid, signal.SIGKILL)
    ids += writer.communicate()[0].split()
    assert all(store.get(one) is not None for one in ids)


def test_scores_that_come_later_are_laid_over_the_run(store: TrajectoryStore) -> None:
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


def test_a_new_score_replaces_every_reward_of_a_run(store: TrajectoryStore) -> None:
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
def test_all_rewards_of_a_scored_run_are_stored(store: TrajectoryStore, by: str) -> None:
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


def test_a_group_is_scored_whole_or_not_at_all(store: TrajectoryStore) -> None:
    known, unknown = run("a"), run("a", 1.0)
    store.add(known)
    with pytest.raises(KeyError):
        store.score_group(
            TrajectoryGroup(scenario=known.scenario, trajectories=[known.model_copy(update={"reward": 1.0}), unknown])
        )
    assert [one.reward for one in store] == [None]


def test_the_score_that_was_given_last_counts_whatever_the_clock_says(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = run("a")
    store.add(one)
    for now, reward in ((2000.0, 0.1), (1000.0, 0.9)):
        monkeypatch.setattr("art_langgraph.store.score.time.time", lambda now=now: now)
        store.score(one.id, reward)
    assert [one.reward for one in store] == [0.9]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e30])
def test_a_reward_that_is_not_finite_is_refused(store: TrajectoryStore, reward: float) -> None:
    one = run("a")
    store.add(one)
    with pytest.raises(ConfigError, match=re.escape(f"the reward of {one.id} is {reward}")):
        store.score(one.id, reward)


def test_metrics_that_are_not_finite_are_read_back(store: TrajectoryStore) -> None:
    one = run("a")
    one.metrics = {"ratio": float("inf")}
    store.add(one)
    store.score(one.id, 1.0, {"ratio": float("-inf")})
    assert [one.metrics for one in store] == [{"ratio": float("-inf")}]


def test_the_runs_of_a_step_are_free_again_when_it_makes_no_version(store: TrajectoryStore) -> None:
    for step in ("made", "skipped", "open"):
        store.begin_step("p", step, [f"{step}-1", f"{step}-2"])
    store.begin_step("p", "open", ["open-3"])
    assert store.open_steps("p") == ["made", "skipped", "open"]
    store.end_step("p", "made", 3)
    store.end_step("p", "skipped", None)
    assert store.open_steps("p") == ["open"]
    assert store.trained("p") == {"made-1", "made-2", "open-3"}
    assert (store.trained("other"), store.open_steps("other")) == (set(), [])
    assert store.runs_of_step("p", "skipped") == {"skipped-1", "skipped-2"}, "whatever became of it"
    assert store.runs_of_step("p", "unknown") == store.runs_of_step("other", "made") == set()
    store.end_step("p", "skipped", 4)  # another process had looked too early
    assert {"skipped-1", "skipped-2"} <= store.trained("p")


def test_two_steps_that_begin_at_once_share_no_run(store: TrajectoryStore, store_place: str) -> None:
    ids = [f"run-{number}" for number in range(20)]

    def begin(step: int) -> frozenset[str]:
        return TrajectoryStore(store_place).begin_step("p", f"step-{step}", ids[step:], again=False)

    with ThreadPoolExecutor(4) as pool:
        given = list(pool.map(begin, range(4)))
    assert sum(map(len, given)) == len(frozenset().union(*given))
    assert store.trained("p") == frozenset().union(*given)


def test_the_revision_changes_with_every_run_and_score(store: TrajectoryStore) -> None:
    one = run("a")
    revisions = [store.revision()]
    for change in (lambda: store.add(one), lambda: store.score(one.id, 1.0), lambda: store.add(run("b"))):
        change()
        revisions.append(store.revision())
    store.delete(["b"])
    store.add(run("c"))
    assert len({*revisions, store.revision()}) == 5


def test_the_oldest_runs_are_pruned(store: TrajectoryStore) -> None:
    noise = [random.Random(number).randbytes(4000).hex() for number in range(20)]
    runs = [Trajectory(scenario=Scenario(input=text), started=100.0 + at) for at, text in enumerate(noise)]
    for one in runs:
        store.add(one)
    assert store.prune(most_bytes=20 * 10_000) == 0
    deleted = store.prune(most_bytes=20 * 4_000)
    assert 0 < deleted < 15
    assert [one.id for one in store] == [one.id for one in reversed(runs[deleted:])]
    assert store.prune(days=1) == 20 - deleted


def test_unfinished_runs_are_pruned_too_with_all_that_is_read_with_them(store: TrajectoryStore) -> None:
    text = random.Random(1).randbytes(2000).hex()
    killed = Trajectory(scenario=Scenario(input="ö"), started=1.0)
    first = Trajectory(scenario=Scenario(input=text), thread_id="t", started=2.0)
    second = Trajectory(scenario=Scenario(input="y"), thread_id="t", started=9.0, resumes="newest", output=text)
    kept = Trajectory(scenario=Scenario(input="ö"), started=3.0)
    with store.session() as session, session.batch() as batch:
        batch.begin(killed)
        batch.completion(killed.id, CompletionCall(id="c", started=1.0, message={"content": text}))
        for one in (first, second, kept):
            batch.add(one)
    assert store.prune(most_bytes=10 * len(text)) == 0
    assert store.prune(most_bytes=len(text)) == 3
    assert list(store) == [kept]
    assert store.unfinished() == []


def test_ids_are_known_by_their_beginning(store: TrajectoryStore) -> None:
    first, second, begun = run("a"), run("b"), run("c")
    first.id, second.id, begun.id, second.run_id = "tr-1a", "tr-1b", "tr-2", "tr-1-run"
    store.add(first)
    store.add(second)
    with store.session() as session, session.batch() as batch:
        batch.begin(begun)
    assert store.ids_with_prefix("tr-1") == ["tr-1-run", "tr-1a", "tr-1b"]
    assert store.ids_with_prefix("tr-2") == ["tr-2"]
    assert store.ids_with_prefix("TR") == []


def test_runs_may_be_deleted_while_they_are_read(store: TrajectoryStore) -> None:
    for number in range(40):
        store.add(run(str(number)))
    for one in store:
        store.delete([one.id])
        if len(store) < 35:
            break
    assert len(store) == 34


def test_filters(store: TrajectoryStore) -> None:
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
def test_a_killed_run_keeps_its_finished_completions(store: TrajectoryStore, store_place: str) -> None:
    done = subprocess.run([sys.executable, "-c", _CUT_OFF, store_place], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(store) == 0
    (cut,) = store.unfinished()
    assert [(one.message or {})["content"] for one in cut.completions] == ["first", "second"]
    assert cut.error == "the run has not ended"
    assert store.get(cut.id) == cut


def test_a_version_keeps_its_first_evaluation(store: TrajectoryStore) -> None:
    for version, ids in ((3, ["a", "b"]), (0, ["c"]), (3, ["d"])):
        store.add_evaluation("key", version, ids)
    store.add_evaluation("other", 1, ["e"])
    assert list(store.evaluations("key").items()) == [(3, ["a", "b"]), (0, ["c"])], "in the order of their making"
    assert store.evaluations("none") == {}


def test_the_tuning_of_a_training_is_the_one_that_was_recorded_last(store: TrajectoryStore) -> None:
    assert store.tuning("run") is None
    for key, runs in (("run", 64), ("other", 8), ("run", 32)):
        store.set_tuning(key, runs)
    assert (store.tuning("run"), store.tuning("other")) == (32, 8)
