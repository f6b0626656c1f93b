"""Graphs for `langgraph dev`, each of another shape, as users write them."""

import operator
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from art_langgraph import ChatART

model = ChatART(policy="shapes", max_tokens=60)


@tool
def double(value: int) -> int:
    """Double a number."""
    return 2 * value


agent = create_agent(model, [double])


async def ask(text: str) -> str:
    return (await model.ainvoke(f"say {text}")).text


class Fan(TypedDict):
    count: int
    found: Annotated[list[str], operator.add]


async def worker(state: dict[str, int]) -> dict[str, list[str]]:
    return {"found": [await ask(str(state["number"]))]}


def spread(state: Fan) -> list[Send]:
    return [Send("worker", {"number": number}) for number in range(state["count"])]


fan = StateGraph(Fan).add_node("worker", worker).add_conditional_edges(START, spread, ["worker"]).compile()


async def inner(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model.ainvoke("say inner")]}


async def outer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model.ainvoke("say outer")]}


child = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile()
nested = (
    StateGraph(MessagesState)
    .add_node("child", child)
    .add_node("outer", outer)
    .add_edge(START, "child")
    .add_edge("child", "outer")
    .compile()
)


async def asks_a_person(state: MessagesState) -> dict[str, Any]:
    draft = await ask("draft")
    return {"messages": [await model.ainvoke(f"say {interrupt(draft)}")]}


person = StateGraph(MessagesState).add_node("asks", asks_a_person).add_edge(START, "asks").compile()

_failed: set[str] = set()


async def shaky(state: MessagesState) -> dict[str, Any]:
    answer = await model.ainvoke("say tried")
    if (text := state["messages"][-1].text) not in _failed:
        _failed.add(text)
        raise ValueError("the first time it fails")
    return {"messages": [answer]}


retried = (
    StateGraph(MessagesState)
    .add_node("shaky", shaky, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.01, retry_on=ValueError))
    .add_edge(START, "shaky")
    .compile()
)


async def supervisor(state: MessagesState) -> Command[Any]:
    await ask("who")
    return Command(goto="expert" if len(state["messages"]) == 1 else END)


async def expert(state: MessagesState) -> Command[Any]:
    return Command(goto="supervisor", update={"messages": [await model.ainvoke("say expert")]})


handoff = (
    StateGraph(MessagesState)
    .add_node("supervisor", supervisor)
    .add_node("expert", expert)
    .add_edge(START, "supervisor")
    .compile()
)


@task
async def piece(number: int) -> str:
    return await ask(f"piece {number}")


@entrypoint()
async def functional(inputs: dict[str, Any]) -> list[str]:
    return [await piece(0), await piece(1)]


async def breaks(state: MessagesState) -> dict[str, Any]:
    await ask("last words")
    raise RuntimeError("it broke")


broken = StateGraph(MessagesState).add_node("breaks", breaks).add_edge(START, "breaks").compile()
