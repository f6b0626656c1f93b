"""The agent: a supervisor and three workers, each a node that asks the policy. It has no code for RL."""

from __future__ import annotations

from typing import Any, TypedDict

from art_examples.multi_agent.orders import WORKERS
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, StateGraph

SUPERVISOR = "Name the worker who knows what is missing: shipping, billing or packing. If nothing is missing, say done."
WORKER = "Answer with what you know of the order."
DONE = "done"
MAX_CALLS = 4


class State(TypedDict, total=False):
    """The question, what each worker knows, what workers said, and what the supervisor said last."""

    question: str
    facts: dict[str, str]
    said: list[tuple[str, str]]
    chosen: str


def build_graph(model: BaseChatModel) -> Runnable[Any, Any]:
    """A graph in which the supervisor hands the question to workers until it says that nothing is missing."""

    async def supervisor(state: State) -> State:
        return {"chosen": await _ask(model, SUPERVISOR, report(state["question"], state.get("said", [])))}

    def worker(name: str) -> Any:
        async def answer(state: State) -> State:
            known = note(state["question"], state["facts"][name])
            return {"said": [*state.get("said", []), (name, await _ask(model, WORKER, known))]}

        return answer

    def after_supervisor(state: State) -> str:
        return state["chosen"] if state["chosen"] in WORKERS and len(state.get("said", [])) < MAX_CALLS else END

    graph = StateGraph(State).add_node("supervisor", supervisor).add_edge(START, "supervisor")
    for name in WORKERS:
        graph.add_node(name, worker(name)).add_edge(name, "supervisor")
    graph.add_conditional_edges("supervisor", after_supervisor, [*WORKERS, END])
    return graph.compile()


def report(question: str, said: list[tuple[str, str]]) -> str:
    """What the supervisor sees: the question, and what workers said."""
    return "\n".join([question, *(f"{worker}: {text}" for worker, text in said)])


def note(question: str, fact: str) -> str:
    """What a worker sees: the number of the order, and what it knows."""
    return f"{question.partition(':')[0]}: {fact}."


async def _ask(model: BaseChatModel, system: str, text: str) -> str:
    answer = await model.ainvoke([SystemMessage(system), HumanMessage(text)])
    return answer.text.strip().rstrip(".")
