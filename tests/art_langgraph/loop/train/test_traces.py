"""One trace joins a training step: rollouts, model calls, the gateway, the engine, the job and what the trainer did."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from art_langgraph import ChatART, Scenario, TrainerClient, gather, train
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TOKEN, TrainerServer, trainer_server_on
from tests.support.tracing.otlp import Collector, collecting
from trainer_server.common import tracing
from trainer_server.server.access.tokens import Scope, TokenRepository

CHAT = "POST /v1/chat/completions"


class OpenSpans(SpanProcessor):
    """Knows which spans have begun and not ended."""

    def __init__(self) -> None:
        self.ids: set[int] = set()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.ids.add(span.get_span_context().span_id)

    def on_end(self, span: ReadableSpan) -> None:
        self.ids.discard(span.get_span_context().span_id)


OPEN = OpenSpans()


def sent() -> None:
    """Waits until all spans have ended and are at the collector. The server's end after its answers have come."""
    deadline = time.monotonic() + PATIENCE
    while OPEN.ids:
        assert time.monotonic() < deadline, f"{len(OPEN.ids)} spans do not end"
        time.sleep(0.01)
    tracer: Any = tracing._tracer
    tracer.span_processor.force_flush()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Gets the spans of this process, client and server."""
    with collecting() as found:
        provider = TracerProvider()
        provider.add_span_processor(OPEN)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{found.url}/v1/traces")))
        tracing.use(provider)
        yield found
        tracing.use(None)
        provider.shutdown()


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[TrainerServer]:
    """A server that was started while traces are on."""
    with trainer_server_on(tmp_path_factory.mktemp("traced"), base_model) as running:
        with running.http() as http:
            assert http.post("/api/policies", json={"name": "traced"}).status_code == 201
        sent()
        yield running


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def graph(kind: str) -> Any:
    """A graph that uses a tool and asks the model: `async`, as a `stream`, or in a `thread`."""
    model = ChatART(policy="traced", max_tokens=12, streaming=kind == "stream")

    def think_in_a_thread(state: MessagesState) -> dict[str, Any]:
        weather.invoke({"city": "Oslo"})
        return {"messages": [model.invoke(state["messages"])]}

    async def think(state: MessagesState) -> dict[str, Any]:
        await weather.ainvoke({"city": "Oslo"})
        return {"messages": [await model.ainvoke(state["messages"])]}

    node: Any = think_in_a_thread if kind == "thread" else think
    return StateGraph(MessagesState).add_node("think", node).add_edge(START, "think").compile(name="forecast")


@pytest.mark.parametrize("kind", ["async", "stream", "thread"])
async def test_a_training_step_is_one_trace(
    collector: Collector, traced: TrainerServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("ART_BASE_URL", traced.url)
    monkeypatch.setenv("ART_API_KEY", TOKEN)
    collector.spans.clear()
    rewards = iter([0.0, 1.0])
    async with TrainerClient() as client:
        async for record in train(
            graph(kind),
            [Scenario(input="say secret", id="s")],
            policy="traced",
            reward=lambda run: next(rewards),
            steps=1,
            groups_per_step=1,
            n=2,
            client=client,
            progress=False,
        ):
            version = record.result.version
        await client.jobs()
    sent()
    (step,) = collector.named("training step 1")
    rollouts = collector.named("invoke_agent forecast")
    assert {span.trace for span in collector.spans} == {step.trace}, [span.name for span in collector.spans]
    assert [span.parent for span in rollouts] == [step.id] * 2
    assert [span.events for span in rollouts] == [["gen_ai.evaluation.result"]] * 2
    assert rollouts[0].attributes["gen_ai.agent.name"] == "forecast"
    engines = collector.named("engine")
    assert len(engines) == 2
    above = ["training step 1", "invoke_agent forecast", "chat traced", CHAT, "chat traced"]
    assert [collector.above(span) for span in engines] == [above] * 2
    assert traced.engine["traceparent"].split("-")[1:3] in [[span.trace, span.id] for span in engines]
    client_call, gateway_call = collector.named("chat traced")[0], collector.named("chat traced")[1]
    asked = [span for span in collector.named("chat traced") if span.kind == 3]
    assert len(asked) == 2
    assert asked[0].attributes["gen_ai.operation.name"] == "chat"
    assert asked[0].attributes["gen_ai.response.id"].startswith("chatcmpl-")
    assert asked[0].attributes["art.node"] == "think"
    served = [span for span in collector.named("chat traced") if span.kind != 3]
    assert {span.attributes["art.rollout.id"] for span in served} == {
        span.attributes["art.rollout.id"] for span in rollouts
    }
    assert served[0].attributes["gen_ai.usage.output_tokens"] == asked[0].attributes["gen_ai.usage.output_tokens"]
    assert [span.name for span in collector.spans if span.name.startswith("execute_tool")] == [
        "execute_tool weather"
    ] * 2
    (job,) = collector.named("job step traced")
    assert collector.above(job) == ["training step 1", "submit step traced", "POST /api/policies/{name}/steps"]
    assert job.attributes["art.version"] == version
    assert job.attributes["art.metrics.reward_mean"] == 0.5
    for name in ("step", "load version"):
        (phase,) = collector.named(name)
        assert phase.parent == job.id
        assert job.start <= phase.start <= phase.end <= job.end + 1e-3
    (submitted,) = collector.named("submit step traced")
    assert set(submitted.links) == {span.id for span in rollouts}
    everything = repr([span.attributes for span in collector.spans])
    assert "secret" not in everything, "spans quote nobody"
    assert TOKEN not in everything
    assert client_call.start <= gateway_call.start


async def test_what_fails_is_a_span_that_failed(
    collector: Collector, traced: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_BASE_URL", traced.url)
    monkeypatch.setenv("ART_API_KEY", TOKEN)
    collector.spans.clear()

    async def broken(state: MessagesState) -> dict[str, Any]:
        if state["messages"][0].text == "b":
            raise KeyError("no such city")
        return {"messages": [await ChatART(policy="traced", max_tokens=5).ainvoke("say x")]}

    compiled = StateGraph(MessagesState).add_node("n", broken).add_edge(START, "n").compile()
    await gather(compiled, ["a", "b"], 1, lambda run: 1.0, progress=False)
    sent()
    failed = {span.failed: span for span in collector.named("invoke_agent LangGraph")}
    assert failed[True].attributes["error.type"] == "KeyError"
    assert failed[True].trace != failed[False].trace, "rollouts outside of a step are traces of their own"


def test_probes_and_pages_have_no_spans(collector: Collector, traced: TrainerServer) -> None:
    collector.spans.clear()
    with traced.http() as http:
        for path in ("/health", "/metrics", "/api/jobs", "/v1/models"):
            assert http.get(path).status_code == 200
        body = {"model": "traced", "messages": [{"role": "user", "content": "say x"}], "max_tokens": 3}
        given = f"00-{'ab' * 16}-{'cd' * 8}-01"
        http.post("/v1/chat/completions", json=body, headers={"traceparent": given})
        http.post("/v1/chat/completions", json=body)
        http.post("/v1/chat/completions", json={**body, "model": "nobody"})
    sent()
    posts = collector.named(CHAT)
    assert [span.attributes["http.response.status_code"] for span in posts] == [200, 200, 404]
    assert (posts[0].trace, posts[0].parent) == ("ab" * 16, "cd" * 8)
    assert len({span.trace for span in posts}) == 3


def test_a_request_names_its_token_and_the_owner(collector: Collector, traced: TrainerServer) -> None:
    secret = TokenRepository(traced.home).create("laptop", Scope.rollout, owner="ann")
    collector.spans.clear()
    body = {"model": "traced", "messages": [{"role": "user", "content": "say x"}], "max_tokens": 3}
    with traced.http() as http:
        http.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"})
        http.post("/v1/chat/completions", json=body)
    sent()
    named = [
        {name: span.attributes.get(name) for name in ("art.token", "enduser.id")} for span in collector.named(CHAT)
    ]
    assert named == [{"art.token": "laptop", "enduser.id": "ann"}, {"art.token": "server-key", "enduser.id": None}]
