"""The version and the temperature of a rollout reach every model that asks the policy, or the rollout fails."""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain.chat_models import init_chat_model
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import (
    ChatART,
    GRPOConfig,
    Scenario,
    TrainerClient,
    Trajectory,
    TrajectoryGroup,
    TrajectoryStore,
    evaluate,
    gather,
    rollout,
    train,
)
from art_langgraph.capture.scope import Scope
from art_langgraph.loop.pins import PinIgnored, find_ignored_pin
from tests.support.runs.graphs import counting
from tests.support.servers.trainer_server import TOKEN, TrainerServer

POLICY = "pinned"


class Foreign(BaseChatModel):
    """A client of the gateway that is made with neither LangChain nor httpx."""

    url: str
    temperature: float = 1.0

    @property
    def _llm_type(self) -> str:
        return "foreign"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": POLICY}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        body = {"model": POLICY, "messages": convert_to_openai_messages(messages), "temperature": self.temperature}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps({**body, "max_tokens": 9}).encode(),
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        facts = {"system_fingerprint": answer["id"], "model_name": answer["model"]}
        message = AIMessage(answer["choices"][0]["message"]["content"], response_metadata=facts)
        return ChatResult(generations=[ChatGeneration(message=message)], llm_output=facts)


def asking(model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


async def sampled(run: Trajectory) -> list[tuple[int | None, float, bool]]:
    """Version and temperature of each answer of a run by the ledger, and whether it belongs to the rollout."""
    async with TrainerClient() as trainer:
        rows = [await trainer.completion(str(call.id)) for call in run.completions]
    return [(row.version, row.sampling.temperature, row.rollout == run.rollout_id) for row in rows]


@pytest.fixture
async def two_versions(connected: TrainerServer) -> TrainerServer:
    """The server, with two versions of a policy."""
    async with TrainerClient() as trainer:
        await trainer.create_policy(POLICY)
        if len(await trainer.versions(POLICY)) == 1:
            rewards = iter([1.0, 0.0])
            groups = await gather(counting(POLICY), ["x"], 2, lambda _: next(rewards), progress=False)
            assert (await trainer.train_step(POLICY, groups, GRPOConfig(lr=1e-3))).version == 1
    return connected


def models(url: str) -> list[Runnable[Any, Any]]:
    options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": TOKEN, "max_tokens": 20, "temperature": 0.9}
    return [
        ChatART(policy=POLICY, max_tokens=20, temperature=0.9),
        ChatOpenAI(model=POLICY, http_async_client=httpx.AsyncClient(timeout=60), **options),
        ChatOpenAI(model=POLICY, http_async_client=httpx.AsyncClient(timeout=60), streaming=True, **options),
        init_chat_model(
            POLICY, model_provider="openai", http_async_client=httpx.AsyncClient(timeout=60), **options
        ).bind(stop=["never"]),
    ]


@pytest.mark.parametrize("kind", range(4), ids=["ChatART", "ChatOpenAI", "streaming", "init_chat_model"])
async def test_a_rollout_asks_for_its_version_at_its_temperature(two_versions: TrainerServer, kind: int) -> None:
    graph = asking(models(two_versions.url)[kind])
    for version, temperature in ((0, 0.25), (1, 0.5)):
        run = await rollout(graph, "say x", version=version, temperature=temperature)
        assert run.error is None
        assert await sampled(run) == [(version, temperature, True)]
    run = await rollout(graph, "say x")
    assert await sampled(run) == [(1, 0.9, True)]


async def test_models_without_an_event_loop_too(two_versions: TrainerServer) -> None:
    model = ChatOpenAI(model=POLICY, base_url=f"{two_versions.url}/v1", api_key=TOKEN, max_tokens=20)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await asyncio.to_thread(model.invoke, state["messages"])]}

    graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()
    assert await sampled(await rollout(graph, "say x", version=0, temperature=0.0)) == [(0, 0.0, True)]


async def test_an_evaluation_measures_the_version_that_it_was_asked_for(two_versions: TrainerServer) -> None:
    measured = await evaluate(asking(models(two_versions.url)[1]), ["say x"], version=0, n=2, progress=False)
    assert measured.versions == {POLICY: [0]}
    assert [row for run in measured.trajectories for row in await sampled(run)] == [(0, 0.0, True)] * 2


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"version": 0}, r"version=0 was asked for, and pinned@1 answered\. Let the graph ask .* ChatART"),
        ({"version": {POLICY: 0}}, r"version=\{'pinned': 0\} was asked for, and pinned@1 answered"),
        ({"temperature": 0.5}, r"temperature=0\.5 was asked for, and pinned answered at 1\.0"),
    ],
)
async def test_a_model_that_is_not_reached_fails_the_rollout(
    two_versions: TrainerServer, asked: dict[str, Any], message: str, tmp_path: Path
) -> None:
    store = TrajectoryStore(tmp_path / "store.sqlite")
    graph = asking(Foreign(url=two_versions.url))
    with pytest.raises(PinIgnored, match=message) as raised:
        await rollout(graph, "say x", lambda _: 1.0, store=store, **asked)
    (run,) = raised.value.trajectories
    assert store.get(run.id) is not None
    assert str(run.error).startswith("PinIgnored: ")
    with pytest.raises(PinIgnored, match=message):
        await gather(graph, ["say x", "say y"], 2, progress=False, **asked)


async def test_a_model_that_answers_as_asked_though_it_is_not_reached_is_fine(two_versions: TrainerServer) -> None:
    graph = asking(Foreign(url=two_versions.url, temperature=0.5))
    run = await rollout(graph, "say x", version=1, temperature=0.5)
    assert (run.error, run.versions) == (None, {POLICY: [1]})
    cold = await rollout(asking(Foreign(url=two_versions.url, temperature=0.004)), "say x", temperature=0.004)
    assert cold.error is None, "the gateway raises it to 0.01"


async def test_in_a_training_such_a_run_counts_as_failed(two_versions: TrainerServer) -> None:
    graph = asking(Foreign(url=two_versions.url))
    async with TrainerClient() as client:
        steps = train(
            graph, ["say x"], policy=POLICY, reward=lambda _: 1.0, steps=1, client=client, groups_per_step=1, n=2,
            temperature=0.7, progress=False,
        )  # fmt: skip
        with pytest.raises(Exception, match=r"2 of 2 runs raised: PinIgnored: temperature=0\.7 was asked for"):
            await anext(steps)


async def test_a_version_that_the_graph_names_is_kept(two_versions: TrainerServer) -> None:
    run = await rollout(asking(ChatART(policy=f"{POLICY}@1", max_tokens=9)), "say x", version=0)
    assert (run.error, run.versions) == (None, {f"{POLICY}@1".partition("@")[0]: [1]})


async def test_the_base_model_has_no_versions(two_versions: TrainerServer) -> None:
    with two_versions.http() as http:
        base = http.get("/v1/models").json()["data"][0]["id"]
    options: dict[str, Any] = {"base_url": f"{two_versions.url}/v1", "api_key": TOKEN, "max_tokens": 9}
    model = ChatOpenAI(model=base, http_async_client=httpx.AsyncClient(timeout=60), **options)
    run = await rollout(asking(model), "say x", version=0, temperature=0.5)
    assert run.error is None
    assert await sampled(run) == [(None, 0.5, True)]


async def test_a_rollout_inside_a_rollout_asks_for_its_own(two_versions: TrainerServer) -> None:
    inner, model = asking(ChatART(policy=POLICY, max_tokens=9)), ChatART(policy=POLICY, max_tokens=9)

    async def node(state: MessagesState) -> dict[str, Any]:
        nested = await rollout(inner, "say x", version=1, temperature=0.5)
        assert nested.error is None
        return {"messages": [await model.ainvoke(state["messages"])]}

    outer = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()
    assert (await rollout(outer, "say x", version=0, temperature=0.25)).error is None


async def test_a_version_that_no_run_asked_for_is_an_error() -> None:
    graph = StateGraph(MessagesState).add_node("node", lambda _: {}).add_edge(START, "node").compile()
    with pytest.raises(PinIgnored, match="version=3 was not asked for: the trainer server answered in none of 2 runs"):
        await evaluate(graph, ["a"], lambda _: 1.0, version=3, n=2, temperature=None, progress=False)
    assert (await evaluate(graph, ["a"], lambda _: 1.0, progress=False)).n == 1


async def test_the_calls_of_a_remote_graph_are_checked_at_the_server(two_versions: TrainerServer) -> None:
    scope = Scope(version=0, temperature=0.25)
    record = Trajectory(scenario=Scenario(input="x"))
    silent = await find_ignored_pin(scope, record, remote=True)
    assert silent is not None
    assert "the trainer server got no request of the rollout from the remote graph" in silent

    def ask(model: str, temperature: float) -> None:
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "temperature": temperature}
        with two_versions.http() as http:
            answer = http.post("/v1/chat/completions", json=body, headers={"X-ART-Rollout": scope.rollout_id})
        assert answer.status_code == 200

    ask(f"{POLICY}@0", 0.25)
    assert await find_ignored_pin(scope, record, remote=True) is None
    ask(f"{POLICY}@0", 0.75)
    assert "temperatures [0.25, 0.75]" in str(await find_ignored_pin(scope, record, remote=True))
    scope = Scope(version=0)
    ask(POLICY, 0.25)
    assert "the remote graph asked for versions [1] of 'pinned'" in str(
        await find_ignored_pin(scope, record, remote=True)
    )
    scope = Scope(temperature=0.005)
    ask(POLICY, 0.005)
    assert await find_ignored_pin(scope, record, remote=True) is None, "the gateway raises it to 0.01"


async def test_a_run_that_follows_crosses_versions_and_each_completion_is_trained_by_its_own(
    connected: TrainerServer,
) -> None:
    """Three calls, and a new version after the first. With a pin, all three are of the first version."""
    policy, rewards = "following", itertools.cycle([1.0, 0.0])
    async with TrainerClient() as trainer:
        await trainer.create_policy(policy)

        def three_calls(between: Callable[[], Awaitable[Any]]) -> Runnable[Any, Any]:
            async def node(state: MessagesState) -> dict[str, Any]:
                model, messages = ChatART(policy=policy, max_tokens=20), list(state["messages"])
                for call in range(3):
                    messages += [await model.ainvoke(messages), HumanMessage("go on")]
                    if call == 0:
                        await between()
                return {"messages": messages}

            return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()

        async def make_version() -> None:
            groups = await gather(counting(policy), ["x"], 2, lambda _: next(rewards), progress=False)
            await trainer.train_step(policy, groups, GRPOConfig(lr=1e-3))

        run = await rollout(three_calls(make_version), "say x", lambda _: 1.0, version={policy: "follow"})
        assert run.error is None
        assert [version for version, *_ in await sampled(run)] == [0, 1, 1]
        assert run.versions == {policy: [0, 1]}
        held = await rollout(three_calls(make_version), "say x", lambda _: 0.0, version={policy: "latest"})
        assert [version for version, *_ in await sampled(held)] == [1, 1, 1]

        group = TrajectoryGroup(scenario=run.scenario, trajectories=[run, held])
        metrics = (await trainer.train_step(policy, [group], GRPOConfig(lr=1e-3))).metrics
        assert (metrics["completions"], metrics["completions_skipped"]) == (6, {})
        assert (metrics["staleness_mean"], metrics["staleness_max"]) == (pytest.approx((2 + 1 + 1 + 3) / 6), 2)
        assert metrics["reward_by_version"] == {"1": {"mean": 0.0, "trajectories": 1}}
