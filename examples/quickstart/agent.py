"""The agent: a model node and a tool node in a loop, with demonstrations in the prompt. It has no code for RL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

SYSTEM = "You answer questions about cities. First call the right tool, then answer with the value that it gave."
MAX_TURNS = 3
"""Maximum number of model calls in a run."""


def _demonstration(question: str, tool: str, city: str, value: str, answer: str) -> list[AnyMessage]:
    """Messages of a run: a question, a tool call with its result, and the answer."""
    call = {"name": tool, "args": {"city": city}, "id": f"demo-{tool}"}
    return [
        HumanMessage(question),
        AIMessage("", tool_calls=[call]),
        ToolMessage(value, tool_call_id=f"demo-{tool}"),
        AIMessage(answer),
    ]


PROMPT: list[AnyMessage] = [
    SystemMessage(SYSTEM),
    *_demonstration(
        "What does a taxi cost in Rome?",
        "get_taxi_fare",
        "Rome",
        "23 euros",
        "A taxi in Rome costs 23 euros.",
    ),
    *_demonstration("How warm is it in Paris?", "get_weather", "Paris", "17 C", "It is 17 C in Paris."),
    *_demonstration("What time is it in Moscow?", "get_time", "Moscow", "09:41", "It is 09:41 in Moscow."),
]


def build_agent(model: BaseChatModel, tools: Sequence[BaseTool]) -> Runnable[Any, Any]:
    """Builds a compiled graph over MessagesState.

    Args:
        model: The chat model, such as ChatART.
        tools: The tools that the model may call.
    """
    bound = model.bind_tools(tools)

    async def call_model(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await bound.ainvoke([*PROMPT, *state["messages"]])]}

    def after_model(state: MessagesState) -> str:
        turns = sum(isinstance(message, AIMessage) for message in state["messages"])
        return "__end__" if turns >= MAX_TURNS else tools_condition(state)  # type: ignore[arg-type]

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", after_model, ["tools", "__end__"])
    graph.add_edge("tools", "model")
    return graph.compile()
