"""What a step says of its runs."""

from __future__ import annotations

from dataclasses import replace

from art_langgraph import NodeRewards, Scenario, StepRecord, StepResult, Trajectory, TrajectoryGroup
from art_langgraph.credit import group_refs
from art_langgraph.rewards import score
from art_langgraph.trajectory import CompletionCall


async def test_the_reward_of_a_step_is_that_of_its_runs_and_not_of_their_nodes() -> None:
    calls = [CompletionCall(id=name, node=name, path=[name], started=0.0) for name in "abc"]
    run = Trajectory(scenario=Scenario(input="x"), completions=calls)
    await score(run, lambda _: NodeRewards(a=1.0, b=0.0, c=0.0))
    group = TrajectoryGroup(scenario=run.scenario, trajectories=[run])
    rewards = [reference.reward or 0.0 for references in group_refs([group]) for reference in references.trajectories]
    result = StepResult(version=1, metrics={"reward_mean": sum(rewards) / len(rewards)})
    record = StepRecord(1, result, [group])
    assert record.reward == 1.0
    assert "mean reward 1.000" in str(record)
    assert replace(record, groups=[]).reward == 1.0, "stop rules see records without their runs"


def test_a_step_without_rewards_of_runs_has_the_mean_that_the_server_tells() -> None:
    call = CompletionCall(id="c", started=0.0, reward=1.0)
    group = TrajectoryGroup(
        scenario=Scenario(input="x"), trajectories=[Trajectory(scenario=Scenario(input="x"), completions=[call])]
    )
    result = StepResult(version=1, metrics={"reward_mean": 0.25})
    assert [StepRecord(1, result, groups).reward for groups in ([], [group])] == [0.25, 0.25]
    assert StepRecord(1, StepResult(version=1, metrics={})).reward is None
