"""A policy that learns by a judge, beside the one that learned by the reward."""

from __future__ import annotations

import pytest
from art_examples.learning.judged import agreement, judge_of_rules, last_said
from art_examples.learning.runs import Options, Run, by_recipe
from art_examples.multi_agent.orders import WORKERS
from art_examples.multi_agent.task import multi_agent

from art_langgraph import Ruler, Scenario, TrainerClient, Trajectory, TrajectoryGroup
from art_langgraph.trajectory import CompletionCall
from tests.support.runs.tasks import answers
from tests.support.servers.judge_app import endpoint, scores
from tests.support.servers.trainer_server import TOKEN, TrainerServer


def group(*pairs: tuple[float, float | None]) -> TrajectoryGroup:
    """Runs with a reward of the task and a score of the judge."""
    asked = Scenario(input="?")
    runs = [Trajectory(scenario=asked, reward=score, metrics={"independent_reward": own}) for own, score in pairs]
    return TrajectoryGroup(scenario=asked, trajectories=runs)


def test_agreement_is_that_of_pairs_with_unequal_rewards() -> None:
    assert agreement([group((0, 0.1), (1, 0.9)), group((0, 0.9), (1, 0.1))]) == (0.5, 2)
    assert agreement([group((0, 0.5), (1, 0.5))]) == (0.5, 1)
    assert agreement([group((1, 0.1), (1, 0.9), (0, None))]) == (None, 0)


async def test_a_judge_of_written_rules_is_asked_over_http() -> None:
    def answered(text: str) -> Trajectory:
        message = {"role": "assistant", "content": text}
        asked = [{"role": "user", "content": "Say much."}]
        calls = [CompletionCall(id=text, message=message, messages=asked, started=0.0)]
        return Trajectory(scenario=Scenario(input="Say much."), completions=calls)

    said = ["a", "a b", "a b c"]
    runs = TrajectoryGroup(scenario=Scenario(input="Say much."), trajectories=[answered(text) for text in said])
    async with judge_of_rules(lambda begun, went_on: len(last_said(went_on)) / 10 * ("much" in begun)) as judge:
        assert (await Ruler(judge).score(runs)).rewards == pytest.approx([0.1, 0.3, 0.5])


@pytest.mark.slow
async def test_a_copy_of_the_warmed_policy_learns_by_the_judge(
    connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with endpoint(scores(lambda text: len(text) % 10 / 10)) as fake, answers(connected, [*WORKERS, "done", "20 euros"]):
        monkeypatch.setenv("OPENAI_API_BASE", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        async with TrainerClient(connected.url, TOKEN) as client:
            options = Options(steps=1, held_out=4, judge="openai/some-judge")
            run = Run(seed=0, client=client, policy="judged-orders", options=options, tell=print)
            row = (await by_recipe(multi_agent)(run)).as_json()
            copy = await client.versions("judged-orders-judged")
    assert fake.requests
    assert row["judged"]["judge"] == "openai/some-judge"
    assert row["judged"]["after"]["n"] == 4
    assert row["judged"]["pairs"] > 0
    assert 0 <= row["judged"]["agreement"] <= 1
    assert copy[0].version == 0
