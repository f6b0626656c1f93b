"""The default agent of `specialize`: a model node and a tool node in a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

SYSTEM = "You do tasks with tools. First call the right tools, then answer with what they gave."
MAX_TURNS = 8
"""Maximum number of model calls in a run."""


def build_agent(
    model: BaseChatModel,
    tools: Sequence[BaseTool],
    system: str = SYSTEM,
    max_turns: int = MAX_TURNS,
    examples: Sequence[Mapping[str, Any]] = (),
) -> Runnable[Any, Any]:
    """Builds a compiled graph over MessagesState with the nodes `agent` and `tools`.

    Args:
        model: The chat model, such as ChatART.
        tools: The tools that the model may call.
        system: System prompt.
        max_turns: Maximum number of model calls after the last message of the user.
        examples: Messages in OpenAI's format that stand between the system prompt and the task, such as
            demonstrations.
    """
    bound = model.bind_tools(tools)
    shown = [SystemMessage(system), *convert_to_messages([dict(message) for message in examples])]

    async def agent(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await bound.ainvoke([*shown, *state["messages"]])]}

    def after_agent(state: MessagesState) -> str:
        messages = state["messages"]
        asked = max((at for at, message in enumerate(messages) if message.type == "human"), default=-1)
        turns = sum(isinstance(message, AIMessage) for message in messages[asked + 1 :])
        last = messages[-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls and turns < max_turns else END

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", after_agent, ["tools", END])
    graph.add_edge("tools", "agent")
    return graph.compile(name="mcp_agent")
