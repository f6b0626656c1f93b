"""The judge of benchmarks.tasks.judging: RULER asks it over a socket, and gets the scores of its rules."""

from __future__ import annotations

import pytest
from art_examples.learning.judged import judge_of_rules

from art_langgraph import Ruler, Scenario, Trajectory, TrajectoryGroup
from art_langgraph.trajectory import CompletionCall
from benchmarks.tasks.judging import grade, grade_of, spearman

TASK = Scenario(id="karo", input="k a r o")


def run(said: str, reward: float) -> Trajectory:
    asked = [{"role": "system", "content": "Reverse."}, {"role": "user", "content": "k a r o"}]
    message = {"role": "assistant", "content": said}
    calls = [CompletionCall(id=said, messages=asked, message=message, started=0.0)]
    return Trajectory(scenario=TASK, completions=calls, reward=reward)


@pytest.mark.parametrize(("said", "score"), [("o r a k", 1.0), ("o r k a", 2.5 / 3), ("k", 0.0), ("", 0.0)])
def test_the_rules(said: str, score: float) -> None:
    assert grade("k a r o", said) == pytest.approx(score)


async def test_ruler_gets_the_scores_of_the_rules() -> None:
    texts = {"o r a k": 1.0, "o r k a": 0.6, "I cannot": 0.1, "o r": 0.3}
    group = TrajectoryGroup(scenario=TASK, trajectories=[run(said, reward) for said, reward in texts.items()])
    async with judge_of_rules(grade_of) as judge:
        judged = await Ruler(judge).score(group)
    assert judged.rewards == pytest.approx([grade("k a r o", said) for said in texts])
    assert spearman([group], [judged]) == pytest.approx([1.0])
    backwards = [run(said, -reward) for said, reward in texts.items()]
    assert spearman([TrajectoryGroup(scenario=TASK, trajectories=backwards)], [judged]) == pytest.approx([-1.0])
    alike = TrajectoryGroup(scenario=TASK, trajectories=[run(said, 0.5) for said in texts])
    assert spearman([alike], [judged]) == []
