"""Only a trainer server is told of rollouts."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from art_langgraph import rollout
from tests.support.servers.serving import serving


async def test_a_model_of_another_server_is_asked_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ART_API_KEY", "ours")
    seen: list[tuple[str, set[str], float]] = []

    async def answer(request: Request) -> JSONResponse:
        body = await request.json()
        names = {name for name in request.headers if name.startswith("x-art")}
        seen.append((body["model"], names, body["temperature"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        return JSONResponse({"id": "a", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})

    with serving(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])) as url:
        for key in ("theirs", "ours"):
            model = ChatOpenAI(
                model="m", base_url=f"{url}/v1", api_key=key, temperature=0.9, http_async_client=httpx.AsyncClient()
            )

            async def node(state: MessagesState, model: ChatOpenAI = model) -> dict[str, Any]:
                return {"messages": [await model.ainvoke(state["messages"])]}

            graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()
            assert (await rollout(graph, "x", version=3, temperature=0.5)).error is None
            assert (await model.ainvoke("x")).text == "x"  # outside of a rollout
    outside: tuple[str, set[str], float] = ("m", set(), 0.9)
    assert seen == [outside, outside, ("m", {"x-art-rollout", "x-art-temperature", "x-art-version"}, 0.9), outside]
