"""langgraph_dev: the app is used, rated and trained over its API, and two steps train it."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import art_examples.langgraph_dev
import pytest
from art_examples.langgraph_dev.app import train_from_store
from art_examples.langgraph_dev.learner import MESSAGES, SHOTS, SHOWN, TIMES, from_feedback
from art_examples.langgraph_dev.messages import (
    DESKS,
    HELD_OUT_THINGS,
    THINGS,
    demonstrations,
    drawn,
    grade,
    held_out,
    training,
)
from art_examples.learning.runs import Options, Run

from art_langgraph import TrainerClient
from tests.support.runs.tasks import answers
from tests.support.servers.judge_app import endpoint
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


@pytest.mark.parametrize(
    ("answer", "score"), [("Billing.", 1.0), (" billing\n", 1.0), ("Returns.", 0.3), ("billing desk", 0.0), ("", 0.0)]
)
def test_a_right_desk_counts_more_than_another_one_and_that_more_than_other_words(answer: str, score: float) -> None:
    assert grade(answer, "billing") == score


def test_each_desk_has_as_many_of_the_messages_that_are_drawn() -> None:
    assert Counter(desk for _, desk in drawn(12, random.Random(0))) == dict.fromkeys(DESKS, 3)
    assert drawn(12, random.Random(0)) != drawn(12, random.Random(1))
    shown = demonstrations(SHOWN, 0)
    assert len(shown) == SHOWN
    assert f'SYSTEM = "{shown[0].messages[0]["content"]}"' in (FOLDER / "graph.py").read_text()


def test_the_command_itself_says_that_there_is_nothing_to_learn(connected: TrainerServer, tmp_path: Path) -> None:
    assert train_from_store("triage-unused", 1e-4, {"ART_HOME": str(tmp_path)}) is None


async def test_a_judge_is_refused(connected: TrainerServer) -> None:
    async with TrainerClient(connected.url, TOKEN) as client:
        options = Options(judge="openai/some-model")
        with pytest.raises(ConfigError, match="--judge"):
            await from_feedback(Run(seed=0, client=client, policy="dev-none", options=options, tell=print))


@pytest.mark.slow
async def test_two_steps_train_the_app(connected: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with endpoint("billing") as fake, answers(connected, list(DESKS)):
        monkeypatch.setenv("OPENAI_API_BASE", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        async with TrainerClient(connected.url, TOKEN) as client:
            options = Options(steps=2, held_out=4, prompted=True, models=["openai/some-model"])
            run = Run(seed=0, client=client, policy="triage-two-steps", options=options, tell=told.append)
            learned = await from_feedback(run)
            version = (await client.policy("triage-two-steps")).latest
    assert len(learned.rewards) == 2
    assert all(reward is not None and 0 < reward < 1 for reward in learned.rewards)
    assert learned.skipped == 0
    assert version == 3  # the warm start, and two steps
    assert any(f"of {MESSAGES * TIMES} answers" in line for line in told)
    assert learned.after is not None
    assert (learned.after.n, learned.after.failed) == (4, 0)
    assert learned.after.versions == {"triage-two-steps": [3]}
    assert learned.prompted is not None
    assert len(fake.requests) == learned.models["openai/some-model"].n == 4
    assert [message["role"] for message in fake.requests[0]["messages"]] == [
        "system", *["user", "assistant"] * SHOTS, "user",
    ]  # fmt: skip
