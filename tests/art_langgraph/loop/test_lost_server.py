"""A run that loses the trainer server in a model call is repeated when the server is back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from art_langgraph import ChatART, rollout
from art_langgraph.client import outages
from art_langgraph.loop.lost_server import REPEATS
from tests.support.clock import run_limits
from tests.support.patience import PATIENCE
from tests.support.servers.serving import serving
from trainer_server.engines.vllm.command import free_port
from trainer_server.gateway.errors import stopping

KEY = "the key"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port that clients find, and that nobody serves yet."""
    chosen = free_port()
    monkeypatch.setenv("ART_BASE_URL", f"http://127.0.0.1:{chosen}")
    monkeypatch.setenv("ART_API_KEY", KEY)
    monkeypatch.setattr(outages.outages, "_outages", {})
    monkeypatch.setattr(outages.outages, "_ended", {})
    return chosen


def gateway(cut: int = 0, *, told: bool = False) -> Starlette:
    """Answers as the gateway does, but cuts the first so many streams off; told: as one that was told to stop."""
    left = [cut]

    async def chunks(broken: bool) -> AsyncIterator[str]:
        for text, reason in (("o", None), ("k", "stop")):
            choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": reason}
            facts = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "agent@0"}
            yield f"data: {json.dumps({**facts, 'system_fingerprint': 'chatcmpl-1', 'choices': [choice]})}\n\n"
            if broken and told:
                yield f"data: {json.dumps(stopping().body())}\n\n"
                return
            if broken:
                raise ConnectionResetError
        yield "data: [DONE]\n\n"

    async def chat(request: Request) -> Response:
        if (await request.json()).get("stream"):
            left[0] -= 1
            return StreamingResponse(chunks(left[0] >= 0), media_type="text/event-stream")
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        facts = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "agent@0"}
        return JSONResponse({**facts, "system_fingerprint": "chatcmpl-1", "choices": [choice]})

    async def done(_: Request) -> Response:
        return JSONResponse({})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/health", done),
            Route("/api/rollouts/release", done, methods=["POST"]),
        ]
    )


def asking(model: Runnable[Any, Any], **options: Any) -> Runnable[Any, Any]:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile(**options)


def plain(port: int, key: str = KEY) -> ChatOpenAI:
    """A model whose calls only OpenAI's client could send again."""
    return ChatOpenAI(
        model="agent", base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0,
        http_async_client=httpx.AsyncClient(timeout=60),
    )  # fmt: skip


async def told(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while text not in caplog.text:
            await asyncio.sleep(0.01)


async def test_the_run_of_a_plain_model_is_repeated_when_the_server_is_back(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    running = asyncio.create_task(rollout(asking(plain(port)), "x", lambda _: 1.0))
    await told(caplog, f"no trainer server answers at http://127.0.0.1:{port}")
    with serving(gateway(), port):
        run = await running
    assert (run.error, run.reward, run.output["messages"][-1].text) == (None, 1.0, "ok")
    assert [call.error for call in run.completions] == [None]
    assert caplog.messages[0].startswith(f"a run lost the trainer server at http://127.0.0.1:{port} (")
    assert caplog.messages[0].endswith("): it is repeated when the server is back")


async def test_chat_art_asks_again_itself(port: int, caplog: pytest.LogCaptureFixture) -> None:
    running = asyncio.create_task(rollout(asking(ChatART(policy="agent")), "x"))
    await told(caplog, f"no trainer server answers at http://127.0.0.1:{port}")
    with serving(gateway(), port):
        assert (await running).error is None
    assert "repeated" not in caplog.text


async def test_without_an_event_loop_too(port: int, caplog: pytest.LogCaptureFixture) -> None:
    answering = asyncio.create_task(asyncio.to_thread(ChatART(policy="agent").invoke, "x"))
    await told(caplog, f"no trainer server answers at http://127.0.0.1:{port}")
    with serving(gateway(), port):
        assert (await answering).text == "ok"


async def test_an_answer_that_was_cut_off_repeats_the_run(port: int, caplog: pytest.LogCaptureFixture) -> None:
    graph = asking(ChatART(policy="agent", streaming=True))
    with serving(gateway(cut=1), port):
        run = await rollout(graph, "x")
        assert (run.error, run.output["messages"][-1].text) == (None, "ok")
    assert "it is repeated when" in caplog.text
    with serving(gateway(cut=99), port):  # one that always breaks off is not repeated for ever
        caplog.clear()
        error = str((await rollout(graph, "x")).error)
        assert "RemoteProtocolError" in error or "Connection error" in error  # openai 2, openai 3
    assert caplog.text.count("it is repeated when") == REPEATS


async def test_an_answer_that_a_stopping_server_broke_off_repeats_the_run(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(gateway(cut=1, told=True), port):
        run = await rollout(asking(ChatART(policy="agent", streaming=True)), "x")
    assert (run.error, run.output["messages"][-1].text) == (None, "ok")
    assert "it is repeated when" in caplog.text


async def test_a_request_that_failed_of_something_else_lost_no_server(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Closed(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise RuntimeError("Event loop is closed")  # as a model does that several event loops share

    model = ChatOpenAI(
        model="agent", base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0,
        http_async_client=httpx.AsyncClient(transport=Closed()),
    )  # fmt: skip
    with serving(gateway(), port):
        run = await rollout(asking(model), "x")
    assert any(words in str(run.error) for words in ("Connection error", "Event loop is closed"))  # openai 2, openai 3
    assert "repeated" not in caplog.text


async def test_time_that_ran_out_while_the_server_was_gone_is_given_again(
    port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = run_limits(monkeypatch)
    running = asyncio.create_task(rollout(asking(ChatART(policy="agent")), "x", timeout=PATIENCE))
    await told(caplog, "no trainer server answers")
    limits.run_out()
    await told(caplog, "): it is repeated when the server is back")
    with serving(gateway(), port):
        assert (await running).error is None


async def test_a_server_that_stays_away_fails_the_run(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_RETRY_FOR", "0.2")
    run = await rollout(asking(plain(port)), "x")
    assert "Connection error." in str(run.error)


async def test_what_cannot_be_repeated_is_not(port: int, caplog: pytest.LogCaptureFixture) -> None:
    other = await rollout(asking(plain(port, "the key of another server")), "x")
    kept = await rollout(
        asking(plain(port), checkpointer=InMemorySaver()), "x", config={"configurable": {"thread_id": "mine"}}
    )
    for run in (other, kept):
        assert "Connection error." in str(run.error)
    assert caplog.messages == []


async def test_where_a_request_went_that_had_the_key_of_another_account_is_told(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_RETRY_FOR", "0")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-account")
    elsewhere = f"http://127.0.0.1:{free_port()}"
    stranger = ChatOpenAI(model="agent", base_url=f"{elsewhere}/v1", max_retries=0)
    error = str((await rollout(asking(stranger), "x")).error)
    assert f"Connection error. ({elsewhere}: ConnectError" in error
    assert "a key that is of no trainer server here, that of OPENAI_API_KEY perhaps" in error
    assert "sk-of-another-account" not in error
    own = str((await rollout(asking(plain(port)), "x")).error)
    assert f"Connection error. (http://127.0.0.1:{port}: ConnectError" in own
    assert "OPENAI_API_KEY" not in own
    assert "art-langgraph connect URL" in own


async def test_a_run_over_https_to_a_server_that_speaks_http_waits_for_nothing(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(gateway(), port):
        run = await rollout(asking(ChatART(policy="agent", base_url=f"https://127.0.0.1:{port}", api_key=KEY)), "x")
    assert "the address says https, and what answers there speaks http" in str(run.error)
    assert caplog.messages == []
