"""Which completions are trained with which reward."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from langchain_core.messages import AnyMessage
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import (
    ChatART,
    GRPOConfig,
    NodeRewards,
    RolloutsFailed,
    Scenario,
    TrainerClient,
    Trajectory,
    TrajectoryGroup,
    evaluate,
    gather,
)
from art_langgraph.credit import Advantage, advantages_by_run, compare, group_refs
from art_langgraph.rewards import score
from art_langgraph.trajectory import CompletionCall
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError


def call(one: str, *path: str, model: str = "agent", **fields: Any) -> CompletionCall:
    return CompletionCall(id=one, model=model, node=path[-1], path=list(path), started=0, **fields)


def run(one: str, *calls: CompletionCall, **fields: Any) -> Trajectory:
    return Trajectory(id=one, scenario=Scenario(id="s", input="x"), completions=list(calls), **fields)


def refs(*runs: Trajectory, **options: Any) -> list[tuple[str, list[tuple[str, float | None, list[str]]]]]:
    found = group_refs([TrajectoryGroup(scenario=runs[0].scenario, trajectories=list(runs))], **options)
    return [(g.scenario_id, [(t.id, t.reward, t.completions) for t in g.trajectories]) for g in found]


def test_one_reward_is_for_all_completions() -> None:
    one = run("t", call("a", "planner"), call("b", "worker", "ask"), reward=0.5)
    assert refs(one) == [("s", [("t", 0.5, ["a", "b"])])]


def test_nodes_are_chosen_by_name_and_by_path() -> None:
    one = run("t", call("a", "planner"), call("b", "worker", "ask"), call("c", "worker", "write"), reward=0.5)
    assert refs(one, nodes=["planner"]) == [("s", [("t", 0.5, ["a"])])]
    assert refs(one, nodes=["worker/*"]) == [("s", [("t", 0.5, ["b", "c"])])]
    assert refs(one, nodes=["ask", "planner"]) == [("s", [("t", 0.5, ["a", "b"])])]


def test_rewards_by_node_are_compared_within_the_node() -> None:
    first = run("t", call("a", "planner"), call("b", "worker"), node_rewards={"planner": 1.0, "worker": 0.0}, reward=1)
    second = run("u", call("c", "planner"), call("d", "worker"), node_rewards={"planner": 0.0, "worker": 0.5}, reward=1)
    assert refs(first, second) == [
        ("s/planner", [("t/planner", 1.0, ["a"]), ("u/planner", 0.0, ["c"])]),
        ("s/worker", [("t/worker", 0.0, ["b"]), ("u/worker", 0.5, ["d"])]),
    ]


def test_single_completions_may_have_rewards_of_their_own() -> None:
    one = run("t", call("a", "n", reward=1.0), call("b", "n", reward=0.0), call("c", "n"), reward=0.3)
    assert refs(one) == [
        ("s/n/each", [("t/a", 1.0, ["a"]), ("t/b", 0.0, ["b"])]),
        ("s", [("t", 0.3, ["c"])]),
    ]


def test_the_parts_of_a_run_name_the_run() -> None:
    whole = run("t", call("a", "planner"), call("b", "worker"), reward=0.5)
    by_node = run("u", call("c", "planner"), call("d", "worker"), node_rewards={"planner": 1.0, "*": 0.0}, reward=1)
    by_call = run("v", call("e", "planner", reward=1.0), call("f", "worker"), reward=0.5)
    groups = group_refs([TrajectoryGroup(scenario=whole.scenario, trajectories=[whole, by_node, by_call])])
    found = {reference.id: reference.run for group in groups for reference in group.trajectories}
    assert found == {"t": None, "u/planner": "u", "u/*": "u", "v/e": "v", "v": "v"}


def test_each_policy_takes_its_own_completions() -> None:
    one = run("t", call("a", "n", model="agent@3"), call("b", "n", model="judge"), reward=1.0)
    assert refs(one, policy="agent") == [("s", [("t", 1.0, ["a"])])]
    assert refs(one, policy="judge") == [("s", [("t", 1.0, ["b"])])]


def test_superseded_attempts() -> None:
    one = run("t", call("a", "n", superseded="retry"), call("b", "n", superseded="resume"), call("c", "n"), reward=1.0)
    assert refs(one) == [("s", [("t", 1.0, ["c"])])]
    assert refs(one, retry_credit="train") == [("s", [("t", 1.0, ["a", "c"])])]


def test_a_completion_that_several_patterns_name_has_the_reward_of_the_first() -> None:
    one = run("t", call("a", "planner"), call("b", "worker"), node_rewards={"planner": 1.0, "*": 0.2}, reward=1.2)
    assert refs(one) == [("s/planner", [("t/planner", 1.0, ["a"])]), ("s/*", [("t/*", 0.2, ["b"])])]


def test_groups_of_different_scenarios_and_kinds_never_mix() -> None:
    odd = Trajectory(id="u", scenario=Scenario(id="s/n", input="x"), completions=[call("b", "n")], reward=0.5)
    by_node = run("t", call("a", "n"), node_rewards={"n": 1.0}, reward=1.0)
    found = group_refs([TrajectoryGroup(scenario=one.scenario, trajectories=[one]) for one in (by_node, odd)])
    assert [[ref.id for ref in group.trajectories] for group in found] == [["t/n"], ["u"]]


def test_an_evaluation_is_skipped_and_its_reward_compared_with_nothing() -> None:
    held = run("e", call("x", "n"), reward=5.0, evaluation=True)
    assert refs(run("a", call("1", "n"), reward=1.0), held) == [("s", [("a", 1.0, ["1"]), ("e", None, [])])]
    alone = Trajectory(id="c", scenario=Scenario(id="z", input="z"), completions=[call("3", "n")], reward=1.0)
    found = compare([alone, held], "agent", history=[run("e2", reward=9.0, evaluation=True), run("f", reward=0.5)])
    assert (found.evaluations, found.single, found.groups[0].baseline) == (1, 1, 0.5)


def test_scores_of_a_judgement_are_compared_within_it() -> None:
    judged = [run(one, call(one, "n"), reward=0.5, judgement="jd-1") for one in "ab"]
    others = [run(one, call(one, "n"), reward=1.0) for one in "cd"]
    again = [run(one, call(one, "n"), reward=0.1, judgement="jd-2") for one in "ef"]
    together = [["a", "b"], ["c", "d"], ["e", "f"]]
    assert [[ref[0] for ref in found] for _, found in refs(*judged, *others, *again)] == together
    found = compare([*judged, *others, again[0]], "agent", history=[run("h", reward=0.0)])
    assert [[ref.id for ref in group.trajectories] for group in found.groups] == together[:2]
    assert (found.mixed_scenarios, found.grouped_count, found.no_baseline) == (1, 4, 1)


async def test_node_rewards_of_a_reward_function() -> None:
    one = run("t", call("a", "planner"))
    await score(one, lambda _: NodeRewards(planner=1.0, worker=0.5))
    assert (one.reward, one.node_rewards) == (1.5, {"planner": 1.0, "worker": 0.5})
    await score(one, lambda _: NodeRewards(planner=float("nan")))
    assert one.reward is None
    assert one.node_rewards is None
    assert "nan" in str(one.reward_error)


def test_stored_runs_are_compared_with_their_scenario_or_with_a_baseline() -> None:
    pair = [run("a", call("1", "n"), reward=1.0), run("b", call("2", "n"), reward=0.0)]
    alone = Trajectory(id="c", scenario=Scenario(id="z", input="z"), completions=[call("3", "n")], reward=1.0)
    unscored = run("d", call("4", "n"))
    found = compare([*pair, alone, unscored], "agent", history=[run("e", reward=0.25), run("f", reward=0.75)])
    assert (found.grouped_count, found.single, found.unscored_count, found.no_baseline, found.no_completions) == (
        2,
        1,
        1,
        0,
        0,
    )
    assert [one.id for one in found.trained_runs] == ["a", "b", "c"]
    assert [(group.scenario_id, group.baseline) for group in found.groups] == [("s", None), ("z", 0.5)]
    assert compare([alone], "agent").no_baseline == 1


def test_a_single_reward_is_compared_with_rewards_of_the_same_kind() -> None:
    def single(id: str, *calls: CompletionCall, **fields: Any) -> Trajectory:
        return Trajectory(id=id, scenario=Scenario(id=id, input=id), completions=list(calls), **fields)

    by_node = [
        single(id, call(f"{id}1", "planner"), call(f"{id}2", "worker"), reward=p + w,
               node_rewards={"planner": p, "worker": w})
        for id, p, w in (("a", 1.0, 1.0), ("b", 0.0, 0.5))
    ]  # fmt: skip
    found = compare(by_node, "agent", history=[single("h", call("h1", "n"), reward=7.0)])
    assert [(group.scenario_id, group.trajectories[0].reward, group.baseline) for group in found.groups] == [
        ("a/planner", 1.0, 0.0), ("a/worker", 1.0, 0.5), ("b/planner", 0.0, 1.0), ("b/worker", 0.5, 1.0),
    ]  # fmt: skip
    own = [single(id, call(f"{id}1", "n", reward=value), call(f"{id}2", "m")) for id, value in (("a", 1.0), ("b", 0.0))]
    found = compare(own, "agent", history=[single("h", call("h1", "n"), reward=7.0)])
    assert [(group.scenario_id, group.baseline) for group in found.groups] == [("a/n/each", 0.0), ("b/n/each", 1.0)]
    assert (found.unscored_count, found.single) == (0, 2)
    plain = single("c", call("c1", "n"), reward=0.5)
    assert compare([*by_node, plain], "agent").no_baseline == 1


def test_runs_without_a_completion_to_train_are_left_out_and_counted() -> None:
    pair = [run("a", call("1", "n"), reward=1.0), run("b", reward=0.0)]
    found = compare(pair, "agent")
    assert ([one.id for one in found.trained_runs], found.grouped_count, found.no_completions) == (["a"], 1, 1)
    assert compare(pair, "agent", nodes=["elsewhere"]).groups == []


def graph_of(policy: str, **options: Any) -> Any:
    model = ChatART(policy=policy, max_tokens=20, **options)

    async def node(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()


async def test_evaluation_uses_its_version_and_is_never_trained(connected: TrainerServer) -> None:
    async with TrainerClient() as trainer:
        await trainer.create_policy("credit-measured")
        rewards = iter([1.0, 0.0])
        groups = await gather(graph_of("credit-measured"), ["say a"], 2, lambda _: next(rewards), progress=False)
        assert (await trainer.train_step("credit-measured", groups, GRPOConfig(lr=1e-3))).version == 1
        rewards = iter([1.0, 0.0, 1.0, 1.0])
        found = await evaluate(
            graph_of("credit-measured"), ["say b", "say c"], lambda _: next(rewards), n=2, version=0, temperature=1.0,
            progress=False,
        )  # fmt: skip
        assert found.mean == 0.75
        low, high = found.interval or (0, 0)
        assert 0.2 < low < 0.75 < high < 1.0
        for one in found.trajectories:
            row = await trainer.completion(one.completion_ids[0])
            assert (row.version, row.sampling.temperature) == (0, 1.0)
        groups = TrajectoryGroup.by_scenario(found.trajectories)
        assert (await trainer.train_step("credit-measured", groups)).metrics["skipped"]


async def test_an_evaluation_without_a_reward_of_any_run_is_no_result(connected: TrainerServer) -> None:
    def by_call(trajectory: Trajectory) -> None:
        for call in trajectory.completions:
            call.reward = 1.0

    with pytest.raises(RolloutsFailed, match="2 of 2 runs have rewards of completions alone"):
        await evaluate(graph_of("agent"), ["say a", "say b"], by_call, progress=False)
    assert (await evaluate(graph_of("agent"), [], by_call, progress=False)).n == 0


async def test_single_runs_train_with_a_baseline(connected: TrainerServer) -> None:
    async with TrainerClient() as trainer:
        await trainer.create_policy("single")
        groups = await gather(graph_of("single"), ["say a", "say b"], 1, lambda _: 1.0, progress=False)
        runs = [one for group in groups for one in group.trajectories]
        assert (await trainer.train_step("single", groups)).version == 0  # nothing to compare with
        found = compare(runs[:1], "single", history=[run("x", reward=0.0)])
        result = await trainer.train_step("single", found.groups, GRPOConfig(lr=1e-3))
        assert (result.version, result.metrics["completions"]) == (1, 1)


def test_advantages_take_the_place_of_rewards_by_run_by_node_and_by_completion() -> None:
    calls = [call("a", "planner"), call("b", "worker", "ask"), call("c", "worker", "write")]
    one = run("t", *calls, node_rewards={"planner": 1.0}, reward=0.5)

    def parts(advantage: Advantage) -> list[tuple[str, str, float | None, float | None, list[str]]]:
        found = group_refs([TrajectoryGroup(scenario=one.scenario, trajectories=[one])], advantages={"t": advantage})
        return [(g.scenario_id, t.id, t.reward, t.advantage, t.completions) for g in found for t in g.trajectories]

    assert parts(2.0) == [("s", "t", 0.5, 2.0, ["a", "b", "c"])]
    assert parts({"planner": 1.0, "worker/*": -1.0}) == [
        ("s/planner", "t/planner", 0.5, 1.0, ["a"]),
        ("s/worker/*", "t/worker/*", 0.5, -1.0, ["b", "c"]),
    ]
    assert parts({"c": 3.0, "worker/*": -1.0}) == [
        ("s/worker/write/each", "t/c", 0.5, 3.0, ["c"]),
        ("s/worker/*", "t/worker/*", 0.5, -1.0, ["b"]),
    ]


def test_a_run_of_which_completions_alone_have_rewards_can_have_an_advantage() -> None:
    one = run("t", call("a", "n", reward=1.0), call("b", "n", reward=0.0), call("c", "n"))
    (group,) = group_refs([TrajectoryGroup(scenario=one.scenario, trajectories=[one])], advantages={"t": 1.0})
    assert [(t.reward, t.advantage, t.completions) for t in group.trajectories] == [(0.5, 1.0, ["a", "b", "c"])]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "advantages=0 for 1 groups"),
        (7.0, "advantages=float for 1 groups"),
        ([[1.0]], "the advantages of the group 's' are .1.0.: give a list of 3"),
        ([1.0], "the advantages of the group 's' are 1.0: give a list of 3"),
        ([[1.0, None, None]], "the run 'u' of the group 's' has a reward and no advantage"),
        ([[1.0, {}, None]], "the run 'u' of the group 's' has a reward and no advantage"),
        ([[1.0, float("nan"), None]], "the run 'u' of the group 's': the advantage is nan, not a finite number"),
        ([[1.0, {"planner": float("inf")}, None]], "the run 'u' of the group 's', 'planner': the advantage is inf"),
        ([[1.0, "much", None]], "the run 'u' of the group 's': the advantage is 'much', no number"),
        ([[1.0, 10**400, None]], "the run 'u' of the group 's': the advantage is 1000"),
        ([[1.0, 1e9, None]], "the run 'u' of the group 's': the advantage is 1e\\+09, beyond"),
        ([[1.0, 0.0, float("nan")]], "the run 'v' of the group 's': the advantage is nan"),
    ],
)
def test_what_is_no_advantage_is_refused_by_group_and_value(values: Any, message: str) -> None:
    runs = [run("t", reward=1.0), run("u", reward=0.0), run("v")]
    group = TrajectoryGroup(scenario=runs[0].scenario, trajectories=runs)
    with pytest.raises(ConfigError, match=message):
        advantages_by_run([group], values)
    assert advantages_by_run([group], [[1.0, 0.0, None]]) == {"t": 1.0, "u": 0.0}


def test_advantages_may_be_an_array() -> None:
    runs = [run("t", call("a", "n"), reward=1.0), run("u", call("b", "n"), reward=0.0)]
    group = TrajectoryGroup(scenario=runs[0].scenario, trajectories=runs)
    values: Any = (array("d", [1.5, -1.5]),)
    (reference,) = group_refs([group], advantages=advantages_by_run([group], values))
    assert [trajectory.advantage for trajectory in reference.trajectories] == [1.5, -1.5]
