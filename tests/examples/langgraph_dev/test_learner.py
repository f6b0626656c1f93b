"""langgraph_dev: the app is used, rated and trained over its API, and two steps train it."""

from __future__ import annotations

import json
from pathlib import Path

import art_examples.langgraph_dev
import pytest
from art_examples.langgraph_dev.learner import MESSAGES, TIMES, from_feedback, right
from art_examples.langgraph_dev.messages import DESKS, HELD_OUT_THINGS, THINGS, held_out, training
from art_examples.learning.runs import Options, Run

from art_langgraph import TrainerClient
from tests.support.runs.tasks import answers
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.wire import ConfigError

FOLDER = Path(art_examples.langgraph_dev.__file__).parent


def test_the_project_differs_by_the_capture_app_alone() -> None:
    plain, art = (json.loads((FOLDER / f"{name}.json").read_text()) for name in ("langgraph", "langgraph.art"))
    assert art == {**plain, "http": {"app": "art_langgraph.dev:app"}}
    assert "art_" not in (FOLDER / "graph.py").read_text()


def test_held_out_messages_are_about_other_things() -> None:
    assert not set(THINGS) & set(HELD_OUT_THINGS)
    assert len(held_out()) == len(set(held_out())) == 88
    assert not set(held_out()) & set(training())
    assert {desk for _, desk in training()} == set(DESKS) == {desk for _, desk in held_out()}


@pytest.mark.parametrize(("answer", "is_right"), [("Billing.", True), (" billing\n", True), ("billing desk", False)])
def test_an_answer_is_the_desk_and_nothing_else(answer: str, is_right: bool) -> None:
    assert right(answer, "billing") is is_right


async def test_other_models_are_refused(connected: TrainerServer) -> None:
    async with TrainerClient(connected.url, TOKEN) as client:
        options = Options(judge="openai/some-model")
        with pytest.raises(ConfigError, match="--judge"):
            await from_feedback(Run(seed=0, client=client, policy="dev-none", options=options, tell=print))


@pytest.mark.slow
async def test_two_steps_train_the_app(connected: TrainerServer) -> None:
    told: list[str] = []
    with answers(connected, list(DESKS)):
        async with TrainerClient(connected.url, TOKEN) as client:
            options = Options(steps=2, held_out=4)
            run = Run(seed=0, client=client, policy="triage-two-steps", options=options, tell=told.append)
            learned = await from_feedback(run)
            version = (await client.policy("triage-two-steps")).latest
    assert len(learned.rewards) == 2
    assert all(reward is not None and 0 < reward < 1 for reward in learned.rewards)
    assert learned.skipped == 0
    assert version == 2
    assert any(f"of {MESSAGES * TIMES} answers" in line for line in told)
    assert learned.after is not None
    assert (learned.after.n, learned.after.failed) == (4, 0)
    assert learned.after.versions == {"triage-two-steps": [2]}
    assert learned.as_json()["prompted"] is None
