"""deep_research: planner, searchers and writer, what each of them is rewarded for, and that two steps train them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from art_examples.deep_research.agent import MAX_SEARCHES, PLANNER, SEARCHER, WRITER
from art_examples.deep_research.corpus import Question, draw, facts
from art_examples.deep_research.task import deep_research, demonstrations, reward, scenario, success
from art_examples.learning.task import Task

from art_langgraph import ChatART, TrainerClient, Trajectory, rollout
from art_langgraph.credit import group_refs
from art_langgraph.trajectory import TrajectoryGroup
from tests.support.runs.tasks import Scripted, answers, learned_in_two_steps, run
from tests.support.servers.trainer_server import TOKEN, TrainerServer

FIRST, SECOND = list(facts())[:2]
WANTED = {island: facts()[island]["exports"] for island in (FIRST, SECOND)}
QUESTION = Question(f"Name the exports of {FIRST} and {SECOND}.", "exports", WANTED)
PLAN = f"exports of {FIRST}; exports of {SECOND}"
REPORT = "; ".join(f"{island}: {value}" for island, value in WANTED.items())
ONE, TWO = WANTED.values()
QUESTIONS = [draw(random.Random(seed), held_out=False) for seed in range(2)]


async def played(*said: str) -> tuple[Trajectory, Scripted]:
    model = Scripted(answers=list(said))
    async with deep_research(0) as task:
        return await run(task, scenario(QUESTION), model), model


@pytest.mark.parametrize(
    "question", [QUESTION, draw(random.Random(3), held_out=False), draw(random.Random(4), held_out=True)]
)
async def test_demonstrations_are_a_run_that_gets_the_whole_reward(question: Question) -> None:
    shown = [conversation.messages for conversation in demonstrations(question)]
    by_prompt = {messages[1]["content"]: messages[-1]["content"] for messages in shown}

    class ByPrompt(Scripted):
        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            self.answers = [by_prompt[messages[-1].content]]
            return super()._generate(messages, *args, **kwargs)

    model = ByPrompt(answers=[""])
    async with deep_research(0) as task:
        made = await run(task, scenario(question), model)
    assert made.reward == pytest.approx(1.0)
    assert success(made)
    systems = [asked[0]["content"] for asked in model.asked]
    assert systems == [PLANNER, *[SEARCHER] * len(question.wanted), WRITER]


@pytest.mark.parametrize(
    ("said", "planner", "writer"),
    [
        ([";"], 0.0, 0.0),
        ([f"exports of {FIRST}", ONE, f"{FIRST}: {ONE}"], 1 / 3, 0.5),
        ([f"{PLAN}; exports of {FIRST}", ONE, TWO, ONE, REPORT], 2 / 5, 0.5),
        ([f"capital of {FIRST}; capital of {SECOND}", "a", "b", "a; b"], 0.0, 0.5),
        ([PLAN, "nothing", "nothing", REPORT], 0.5, 0.0),
        ([PLAN, ONE, "nothing", f"{FIRST}: {ONE}"], 0.5, 0.25),
        ([PLAN, "", "", REPORT], 0.5, 0.0),
        ([PLAN, ONE, "", f"{FIRST}: {ONE}"], 0.5, 0.25),
    ],
)
async def test_rewards_of_planner_and_writer(said: list[str], planner: float, writer: float) -> None:
    made, _ = await played(*said)
    assert made.node_rewards == {"planner": pytest.approx(planner), "writer": pytest.approx(writer)}


async def test_only_a_report_of_all_and_nothing_else_succeeds() -> None:
    for report, right in ((REPORT, True), (f"{FIRST}: {ONE}", False), (f"{REPORT}; {FIRST}: tea!", False)):
        made, _ = await played(PLAN, ONE, TWO, report)
        assert success(made) is right


async def test_searches_have_a_limit() -> None:
    made, model = await played("; ".join(f"search {at}" for at in range(9)), "nothing")
    assert len(made.output["findings"]) == MAX_SEARCHES
    assert len(model.asked) == 2 + MAX_SEARCHES


async def test_each_searcher_has_a_reward_of_its_own(connected: TrainerServer) -> None:
    said = [PLAN, "wrong", "wrong", REPORT]
    with answers(connected, said):
        connected.engine["answers"] = list(said)
        async with deep_research(0) as task, TrainerClient(connected.url, TOKEN):
            made = await rollout(task.graph(ChatART(policy="agent", max_tokens=60)), scenario(QUESTION))
    made.output["findings"][1]["text"] = TWO
    reward(made)
    searchers = {call.branch: call.reward for call in made.completions if call.node == "searcher"}
    assert searchers == {0: 0.0, 1: 1.0}
    made.reward, made.node_rewards = 1.0, dict(reward(made))
    refs = group_refs([TrajectoryGroup(scenario=made.scenario, trajectories=[made])])
    places = [reference.id.split("/")[1] for group in refs for reference in group.trajectories]
    assert sorted(places)[-2:] == ["planner", "writer"]
    assert len(places) == 4


@asynccontextmanager
async def about_two_questions(seed: int) -> AsyncIterator[Task]:
    async with deep_research(seed) as task:
        yield replace(task, training=[scenario(question) for question in QUESTIONS])


@pytest.mark.slow
async def test_two_steps_train_it(connected: TrainerServer) -> None:
    """The model says what is right in one of two questions, so that some nodes of some runs are right."""
    texts = [shown.messages[-1]["content"] for question in QUESTIONS for shown in demonstrations(question)]
    learned = await learned_in_two_steps(about_two_questions, "deep-research", connected, texts)
    assert len(learned.rewards) == 2
    assert learned.skipped < 2
    assert learned.tokens["training"] > 0
    assert learned.after is not None
    assert learned.after.n == 4
