"""`score --judge` and `train --from-store --judge`: stored runs, compared by a judge over a socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import TrainerClient, TrajectoryStore, gather
from tests.support.cli import art
from tests.support.runs.graphs import counting
from tests.support.servers.judge_app import Fault, candidates, endpoint, scores, verdict
from tests.support.servers.trainer_server import TrainerServer


@pytest.fixture
def home(tmp_path: Path, connected: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ART_JUDGE_KEY", "secret")
    return tmp_path


async def test_stored_runs_are_judged_by_scenario(home: Path) -> None:
    store = TrajectoryStore()
    await gather(counting(), ["a", "b"], 2, store=store, progress=False)
    await gather(counting(), ["alone"], 1, store=store, progress=False)
    (home / "rubric.md").write_text("Only the last digit counts.")
    with endpoint(scores(lambda text: 0.75)) as at:
        done = art("score", "--judge", "judge", "--judge-url", at.url, "--rubric", f"@{home}/rubric.md", "--votes", "2")
    assert done.exit_code == 0, done.output
    assert "4 scored, 1 failed" in done.output
    assert "4 calls (0 retries, 0 from the cache)" in done.output
    assert "judged by comparison" in done.output
    assert at.keys == ["secret"] * 4
    assert "Only the last digit counts." in at.requests[0]["messages"][0]["content"]
    kept = store.list()
    assert sorted(one.reward for one in kept if one.reward is not None) == [0.75] * 4
    assert {one.reward_source for one in kept} == {"judge"}


async def test_a_judge_that_fails_leaves_stored_runs_unscored(home: Path) -> None:
    store = TrajectoryStore()
    await gather(counting(), ["a"], 2, store=store, progress=False)
    with endpoint(Fault(401, "bad key")) as at:
        done = art("score", "--judge", "judge", "--judge-url", at.url)
    assert (done.exit_code, "0 scored, 2 failed" in done.output) == (1, True)
    assert [one.reward for one in store.list()] == [None, None]
    assert "auth" in str(store.list()[0].reward_error)


async def test_a_step_from_the_store_may_ask_a_judge_and_average_over_runs(home: Path, server: TrainerServer) -> None:
    def spread(body: dict[str, Any]) -> str:
        return verdict({one: 0.2 * one for one in candidates(body)})

    async with TrainerClient() as client:
        await client.create_policy("from-store")
    await gather(counting("from-store"), ["a"], 3, store=TrajectoryStore(), temperature=1.0, progress=False)
    with endpoint(spread) as at:
        words = ["--policy", "from-store", "--lr", "1e-3", "--judge", "judge", "--judge-url", at.url]
        done = art("train", "--from-store", "--loss-aggregation", "trajectory", *words)
    assert "3 runs are compared with others" in done.output
    assert "from-store@1 is served" in done.output
    assert len(at.requests) == 1
    jobs = [json.loads(path.read_text()) for path in server.home.jobs.glob("*/job.json")]
    (step,) = (job for job in jobs if (job["policy"], job["kind"]) == ("from-store", "step"))
    assert (step["request"]["config"]["lr"], step["request"]["config"]["loss_aggregation"]) == (1e-3, "trajectory")
    again = art("train", "--from-store", *words)
    assert "3 of 3 runs are left out: from-store was trained on them; --again uses them again" in again.output
    assert "nothing to train on" in again.output


def test_one_of_reward_and_judge_is_needed(home: Path) -> None:
    for words in ((), ("--reward", "a:b", "--judge", "c/d")):
        assert "either --reward" in str(art("score", *words).exception)
    assert "nothing.md" in str(art("score", "--judge", "a/b", "--rubric", "@nothing.md").exception)
