"""The home of `art-langgraph demo`, as the dashboard and the viewer read it."""

from __future__ import annotations

import html
import re
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from art_examples.quickstart.demo import POLICY, fill, make_base

from art_langgraph import TrajectoryStore, dead_groups
from art_langgraph.trajectory import TrajectoryGroup
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TOKEN
from trainer_server.common import Home
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.ledger.step_tokens import read_step_tokens
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Path]:
    """The home of a demo, and its base model."""
    directory = tmp_path_factory.mktemp("demo")
    home, base = Home(directory / "home"), make_base(directory)
    fill(home, base)
    return home, base


def test_a_step_trains_the_runs_that_differ_and_says_why_it_left_out_the_others(demo: tuple[Home, Path]) -> None:
    home, _ = demo
    queue, ledger = JobQueue(home.jobs), SQLiteLedger(home.ledger)
    runs = {run.id: run for run in TrajectoryStore(home.store).list()}
    left_out = 0
    for job_id in queue.ids():
        job, tokens = queue.job(job_id), read_step_tokens(queue.root / job_id)
        assert job is not None
        assert job.result is not None
        assert tokens is not None
        reasons = {entry.trajectory: entry.reason for entry in tokens.left_out}
        advantages = {entry.trajectory: entry.advantage for entry in tokens.completions}
        assert job.result.trajectories == list(advantages) == queue.used_trajectories(job_id)
        for sent in queue.file(job_id).request.groups:
            rewards = [runs[reference.id].reward for reference in sent.trajectories]
            ids = [reference.id for reference in sent.trajectories]
            if len(set(rewards)) == 1:
                assert [reasons.pop(id) for id in ids] == ["equal_rewards"] * 8
                left_out += 8
                continue
            ranked = sorted((reward, advantages[id]) for reward, id in zip(rewards, ids, strict=True))
            assert all((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairwise(ranked)), ranked
            assert abs(sum(value for _, value in ranked)) < 1e-6
        assert not reasons
        rows = ledger.read([entry.completion for entry in tokens.completions])
        gaps = []
        for entry in tokens.completions:
            sampler = rows[entry.completion].logprobs
            assert len(sampler) == len(entry.logprobs) == len(entry.entropy) == sum(entry.trained)
            assert all(value <= 0.0 for value in (*sampler, *entry.logprobs))
            assert all(value > 0.0 for value in entry.entropy)
            gaps += [abs(a - b) for a, b in zip(entry.logprobs, sampler, strict=True)]
        assert job.result.metrics["logp_gap"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-5)
    assert 0 < left_out < 10 * 6 * 8
    ledger.close()


def test_the_pages_and_the_viewer_have_a_training_without_an_engine(demo: tuple[Home, Path]) -> None:
    home, base = demo
    runs = TrajectoryStore(home.store).list()
    assert len(runs) == 10 * 6 * 8 + 2 * 12 * 4
    training = [run for run in runs if not run.evaluation]
    assert dead_groups(TrajectoryGroup.by_scenario(training)).groups == 60
    first, last = ([run.reward or 0.0 for run in training if run.versions == {POLICY: [version]}] for version in (0, 9))
    assert sum(last) / len(last) > sum(first) / len(first) + 0.3
    config = ServerConfig(home=home, model=str(base), engine_urls=("http://127.0.0.1:9",), trainer_on_demand=True)
    with serving(create_app(config, TOKEN)) as url, httpx.Client(base_url=url, timeout=60) as http:
        assert http.post("/ui/login", data={"token": TOKEN}).status_code == 303
        policy = http.get(f"/ui/policies/{POLICY}").text
        assert "Evaluations with several runs" in policy
        assert f"{POLICY}@10" in policy
        assert http.get("/ui/jobs").text.count("succeeded") >= 10
        run = re.search(r"/ui/runs/ro-demo-\w+", http.get("/ui/runs").text)
        assert run is not None
        page = http.get(run[0]).text
        assert "get_" in page
        completion = re.search(r"/ui/completions/[\w-]+", page)
        assert completion is not None
        tokens = re.sub(r"<[^>]+>", "", http.get(completion[0]).text)
        assert "get_" in tokens

        poor = http.get(f"/ui/runs?policy={POLICY}&version=4&kind=training&max_reward=0.5").text
        page = http.get(re.findall(r"/ui/runs/ro-demo-\w+", poor)[0]).text
        assert re.search(r">trained</span>.*advantage -\d.*made version 5", page, re.DOTALL)
        completion = http.get(re.findall(r"/ui/completions/[\w-]+", page)[0]).text
        assert "(not known)" not in completion
        group = http.get(html.unescape(re.findall(r"/ui/groups[^\"]+", poor)[0])).text
        first, second = list(dict.fromkeys(re.findall(r"/ui/runs/(ro-demo-\w+)", group)))[:2]
        for page in (completion, group, http.get("/ui/diff", params={"a": first, "b": second}).text):
            text = html.unescape(re.sub(r"<[^>]+>", "", page))
            assert re.search(r"→ get_\w+\({\"city\": \"\w", text)
            assert '"arguments"' not in text


def test_the_overview_of_the_demo_has_nothing_to_complain_of(demo: tuple[Home, Path]) -> None:
    home, base = demo
    engine = "trainer_server.cli.demo:no_engines"
    config = ServerConfig(home=home, model=str(base), engine=engine, trainer_on_demand=True)
    with serving(create_app(config, TOKEN)) as url, httpx.Client(base_url=url, timeout=60) as http:
        assert http.post("/ui/login", data={"token": TOKEN}).status_code == 303
        overview = http.get("/").text
        assert "it shows what is recorded, and answers no request to a model" in overview
        assert not re.search(r'class="[^"]*\b(bad|failed)\b', overview)
        assert http.get("/api/status").json()["problems"] == []
        job = re.search(r"/ui/jobs/job-[\w-]+", overview)
        assert job is not None
        trained = http.get(job[0]).text.partition("Runs that it trained")[2]
        assert re.search(
            r'<td>[A-Z][^<]+\?</td><td>(<a class="share" href="/ui/runs/ro-demo-\w+" title="[^"]+">[\d.]+</a> ){8}',
            trained,
        )
        assert http.get("/health", headers={"Authorization": f"Bearer {TOKEN}"}).json()["ready"] is False
