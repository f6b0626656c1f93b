"""The app: it says which desk of a shop a message is for. It knows LangChain and LangGraph, and nothing of training."""

import os
from typing import Any

from langchain_core.messages import SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

SYSTEM = "Say which desk the message is for: billing, shipping, returns or repairs. Answer with that word alone."

model = ChatOpenAI(model=os.environ.get("MODEL", "gpt-4o-mini"), max_tokens=8)  # OPENAI_API_BASE, OPENAI_API_KEY


async def triage(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}


graph = StateGraph(MessagesState).add_node("triage", triage).add_edge(START, "triage").compile()
