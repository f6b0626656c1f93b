"""remote_gpu: the quickstart's agent as a task, trained by a server that is known by address and token alone."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from art_examples.learning.runs import Options, Run
from art_examples.remote_gpu.learner import on_the_server
from art_examples.remote_gpu.stand_in import connected_to_a_stand_in

from art_langgraph import TrainerClient
from tests.support.runs.tasks import answers
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.common import Connection
from trainer_server.wire import ConfigError

NAMES = ("ART_HOME", "ART_BASE_URL", "ART_API_KEY")


@pytest.mark.slow
async def test_two_steps_train_it(connected: TrainerServer) -> None:
    texts = ['call get_weather {"city": "Oslo"}', 'call get_time {"city": "Oslo"}', "It is 17 C in Oslo."]
    told: list[str] = []
    with answers(connected, texts):
        async with TrainerClient(connected.url, TOKEN) as client:
            options = Options(steps=2, held_out=4, prompted=True)
            run = Run(seed=0, client=client, policy="remote-two-steps", options=options, tell=told.append)
            learned = await on_the_server(run)
    assert told[0].startswith(f"server {connected.url}: ")
    assert len(learned.rewards) == 2
    assert learned.prompted is None
    assert set(learned.costs) == {"before", "after"}
    assert learned.after is not None
    assert learned.after.n == 4


def test_the_stand_in_is_found_by_connect_alone(
    server: TrainerServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    for name in NAMES[1:]:
        monkeypatch.delenv(name, raising=False)
    with connected_to_a_stand_in(nullcontext(Connection(server.url, TOKEN))):
        assert Connection.find() == Connection(server.url, TOKEN)
        assert os.environ["ART_HOME"] != str(tmp_path)
    assert [os.environ.get(name) for name in NAMES] == [str(tmp_path), None, None]
    with pytest.raises(ConfigError):
        Connection.find()
