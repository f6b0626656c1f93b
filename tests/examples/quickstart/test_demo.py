"""The home of `art-langgraph demo`, as the dashboard and the viewer read it."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from art_examples.quickstart.demo import POLICY, fill, make_base

from art_langgraph import TrajectoryStore, dead_groups
from art_langgraph.trajectory import TrajectoryGroup
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TOKEN
from trainer_server.common import Home
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig


def test_the_pages_and_the_viewer_have_a_training_without_an_engine(tmp_path: Path) -> None:
    home, base = Home(tmp_path / "home"), make_base(tmp_path)
    fill(home, base)
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
