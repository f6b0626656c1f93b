"""Hints in `train`, on the real server: who gets one, what the ledger has of it, and what is trained."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import (
    ChatART,
    Distillation,
    GRPOConfig,
    Hints,
    Scenario,
    TrainerClient,
    Trajectory,
    TrajectoryGroup,
    TrajectoryStore,
    rollout,
    train,
)
from art_langgraph.credit import compare, group_refs
from art_langgraph.loop.hints import HintCounts, HintPatience, rescue
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.engines.vllm.command import free_port
from trainer_server.wire import ConfigError, GroupRef, TrajectoryRef

HINT = "(the word is right)"
CONFIG = GRPOConfig(max_logp_gap=None, lr=1e-3)


def graph(policy: str, **server: Any) -> Any:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await ChatART(policy=policy, **server).ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("answer", node).add_edge(START, "answer").compile()


def reward(run: Trajectory) -> float:
    return float(run.final_text == "right")


def knows_the_hint(server: TrainerServer, *answers: str) -> None:
    """Prompts that have the hint are answered so; the small engine repeats all others."""
    server.engine["scripts"] = {HINT: list(answers)}


async def test_a_scenario_that_no_run_solves_is_run_with_a_hint_and_learnt_from(
    connected: TrainerServer, tmp_path: Any
) -> None:
    async def hint(scenario: Scenario, failed: list[Trajectory]) -> str | None:
        asked.append((scenario.input, [run.final_text for run in failed]))
        return HINT

    asked: list[Any] = []
    knows_the_hint(connected, "wrong", "right")
    store = TrajectoryStore(tmp_path / "runs.sqlite")
    async with TrainerClient() as client:
        await client.create_policy("hinted")
        steps = train(
            graph("hinted"), ["left", "right"], policy="hinted", reward=reward, client=client, config=CONFIG, steps=1,
            groups_per_step=2, n=2, hints=Hints(hint, runs=2), max_concurrency=1, store=store, progress=False,
        )  # fmt: skip
        (record,) = [record async for record in steps]
        assert asked == [("left", ["left", "left"])]
        assert record.hints == HintCounts(failed=1, hinted=1, runs=2, successes=1, rescued=1)
        assert "hints: 1 scenarios failed, 1 hinted, 1 rescued (1 of 2 runs)" in str(record)
        metrics = record.result.metrics
        assert (record.result.version, metrics["completions"], metrics["completions_hinted"]) == (1, 2, 2)
        assert metrics["groups_skipped_by"] == {"equal_rewards": 1}
        assert metrics["teacher_tokens"] == 2 * len("left")
        assert metrics["teacher_kl"] == record.teacher_kl != 0.0

        success = next(run for run in record.hinted if run.reward == 1.0)
        assert success.hints == {"hinted": HINT}
        row = await client.completion(str(success.completions[0].id))
        assert row.hint == HINT
        assert row.request["messages"][0] == {"role": "system", "content": HINT}
        assert row.prompt_token_ids == list(map(ord, f"{HINT}left"))
        for run in (run for group in record.groups for run in group.trajectories):
            assert (await client.completion(str(run.completions[0].id))).hint is None

        again = [TrajectoryRef(id=str(value), reward=value, completions=[row.id]) for value in (0.0, 1.0)]
        refused = await client.train_step("hinted", [GroupRef(scenario_id="s", trajectories=again)], CONFIG)
        assert refused.metrics["completions_skipped"] == {"hinted": 2}
        assert not [ref for group in group_refs([TrajectoryGroup(scenario=success.scenario, trajectories=[success])])
                    for ref in group.trajectories if ref.completions]  # fmt: skip
        stored = store.get(success.id)
        assert stored is not None
        assert compare([stored], "hinted").evaluations == 1


async def test_hints_go_to_the_server_of_the_client_and_not_to_that_of_the_environment(
    connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows_the_hint(connected, "right")
    monkeypatch.setenv("ART_BASE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("ART_RETRY_FOR", "1")
    chat = graph("hinted", base_url=connected.url, api_key=TOKEN)
    async with TrainerClient(connected.url, TOKEN) as client:
        await client.create_policy("hinted")
        steps = train(
            chat, ["left"], policy="hinted", reward=reward, client=client, config=CONFIG, steps=1, groups_per_step=1,
            n=2, hints=lambda scenario, failed: HINT, progress=False,
        )  # fmt: skip
        (record,) = [record async for record in steps]
    assert record.hints == HintCounts(failed=1, hinted=1, runs=1, successes=1, rescued=1)


async def test_a_teacher_alone_needs_no_rewards(connected: TrainerServer) -> None:
    config = CONFIG.model_copy(update={"distill": Distillation(teacher="base", rewards=False)})
    async with TrainerClient() as client:
        await client.create_policy("hinted")
        steps = train(
            graph("hinted"), ["left"], policy="hinted", client=client, config=config, steps=1, groups_per_step=1, n=2,
            dynamic_sampling=3, progress=False,
        )  # fmt: skip
        (record,) = [record async for record in steps]
        with pytest.raises(ConfigError, match="reward="):
            await anext(train(graph("hinted"), ["left"], policy="hinted", client=client, config=CONFIG, steps=1))
    assert record.skipped is None
    assert record.replaced == 0
    assert record.result.metrics["teacher"] == "base"
    assert record.teacher_kl is not None


async def test_a_hint_without_a_server_to_give_it_to_is_refused(
    connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_langgraph.loop.executors.local.known_servers", list)
    with pytest.raises(ConfigError, match="hints= needs the trainer server"):
        await rollout(graph("hinted"), "left", hints={"hinted": HINT})


def failed_group(*rewards: float | None) -> TrajectoryGroup:
    scenario = Scenario(input="left")
    return TrajectoryGroup(scenario=scenario, trajectories=[Trajectory(scenario=scenario, reward=r) for r in rewards])


async def run_apart(scenario: Scenario, hint: str) -> Trajectory:
    """A run whose model is none of the server's."""
    return Trajectory(scenario=scenario, reward=1.0, hints={"agent": hint})


@pytest.mark.parametrize("given", [None, "", ValueError("no idea")])
async def test_no_hint_runs_nothing(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    def hint(scenario: Scenario, failed: list[Trajectory]) -> str | None:
        if isinstance(given, Exception):
            raise given
        return given  # type: ignore[no-any-return]

    client: Any = None
    groups = [failed_group(0.0, 0.0), failed_group(0.0, 0.6), failed_group(None), failed_group()]
    found = await rescue(groups, Hints(hint), run_apart, policy="agent", client=client, max_concurrency=1)
    assert found.counts == HintCounts(failed=1)
    assert ("ValueError: no idea" in caplog.text) == isinstance(given, Exception)


async def test_an_error_ends_all_hinted_runs() -> None:
    async def run(scenario: Scenario, hint: str) -> Trajectory:
        if scenario.id == "bad":
            raise ConfigError("wrong")
        await asyncio.Event().wait()
        raise AssertionError

    client: Any = None
    groups = [failed_group(0.0), failed_group(0.0).model_copy(update={"scenario": Scenario(id="bad", input="x")})]
    with pytest.raises(ConfigError, match="wrong"):
        await rescue(groups, Hints(lambda *_: HINT), run, policy="agent", client=client, max_concurrency=9)
    assert len(asyncio.all_tasks()) == 1, "this one"


async def test_a_run_that_never_read_its_hint_rescues_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    client: Any = None
    found = await rescue(
        [failed_group(0.0)], Hints(lambda *_: HINT), run_apart, policy="agent", client=client, max_concurrency=1
    )
    assert found.counts == HintCounts(failed=1, hinted=1, runs=1, ignored=1)
    assert not found.hints
    assert "1 of 1 hinted runs never read their hint" in caplog.text


def test_hints_end_after_so_many_runs_in_vain() -> None:
    patience = HintPatience(Hints(lambda *_: HINT, patience=4))
    patience.learn(HintCounts(runs=3))
    assert not patience.over
    patience.learn(HintCounts(runs=3, successes=1))
    assert not patience.over
    patience.learn(HintCounts(runs=2))
    patience.learn(HintCounts(runs=2))
    assert patience.over


async def test_no_more_hints_are_given_once_their_patience_is_over(connected: TrainerServer) -> None:
    knows_the_hint(connected, "wrong")
    async with TrainerClient() as client:
        await client.create_policy("hinted")
        steps = train(
            graph("hinted"), ["left", "left"], policy="hinted", reward=reward, client=client, config=CONFIG, steps=2,
            groups_per_step=1, n=2, hints=Hints(lambda *_: HINT, runs=2, patience=2), progress=False,
        )  # fmt: skip
        records = [record async for record in steps]
    assert [record.hints for record in records] == [HintCounts(failed=1, hinted=1, runs=2), None]


def test_a_patience_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="patience=0"):
        Hints(lambda *_: HINT, patience=0)
