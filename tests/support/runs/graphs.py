"""Graphs that several tests run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import SecretStr

from art_langgraph import ChatART
from trainer_server.common import Connection


def counting(
    policy: str = "agent", *, plain: bool = False, numbers: Iterable[int] = range(100), **options: Any
) -> Runnable[Any, Any]:
    """A graph that says the next of the numbers each time it runs.

    plain: by ChatOpenAI. options: of the model, besides.
    """
    told = iter(numbers)
    model: BaseChatModel = ChatART(policy=policy, max_tokens=50, **options)
    if plain:
        server = Connection.find()
        key = SecretStr(server.api_key)
        model = ChatOpenAI(model=policy, base_url=f"{server.url}/v1", api_key=key, max_completion_tokens=50, **options)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([("user", f"say {next(told)}")])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()
