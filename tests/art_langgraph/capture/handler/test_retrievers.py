"""Retrievers that ask a model, as LangChain's MultiQueryRetriever does: what they ask belongs to the node's run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy

from art_langgraph import ARTCallbackHandler, ChatART, Trajectory, TrajectoryStore, rollout
from art_langgraph.background import release
from art_langgraph.capture import flush, install, uninstall
from tests.support.homes.versions import holders
from tests.support.runs.chat_models import Answering
from tests.support.servers.trainer_server import TrainerServer


class Rewriting(BaseRetriever):
    """Asks a model for another query first, in a chain of its own."""

    model: Any
    fails: int = 0

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        rewritten = (self.model | StrOutputParser()).invoke(query, {"callbacks": run_manager.get_child()})
        self.fails -= 1
        if self.fails >= 0:
            raise ConnectionError("the index is away")
        return [Document(rewritten)]


def searching(retriever: Any, then: Any = lambda: None) -> Any:
    def search(state: MessagesState) -> dict[str, Any]:
        documents = retriever.invoke("query")
        then()
        return {"messages": [("ai", documents[0].page_content)]}

    retry = RetryPolicy(initial_interval=0.001, jitter=False)
    return StateGraph(MessagesState).add_node("search", search, retry_policy=retry).add_edge(START, "search").compile()


def places(run: Trajectory) -> list[tuple[list[str], bool, str | None]]:
    attempts = {node.attempt for node in run.nodes}
    return [(call.path, call.attempt in attempts, call.superseded) for call in run.completions]


async def test_what_a_retriever_asked_in_a_node_that_failed_does_not_count() -> None:
    run = await rollout(searching(Rewriting(model=Answering(), fails=1)), "x")
    assert places(run) == [(["search"], True, "retry"), (["search"], True, None)]


async def test_what_a_retriever_asked_before_it_was_tried_again_does_not_count() -> None:
    retriever = Rewriting(model=Answering(), fails=1).with_retry(wait_exponential_jitter=False)
    run = await rollout(searching(retriever), "x")
    assert len(run.nodes) == 1
    assert places(run) == [(["search"], True, "retry"), (["search"], True, None)]


async def test_a_retrievers_completions_are_captured_with_the_rollout_that_they_belong_to(
    connected: TrainerServer, tmp_path: Path
) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    install(store)
    try:
        retriever = Rewriting(model=ChatART(policy="agent", max_tokens=20))
        await searching(retriever).ainvoke({"messages": []})
        await retriever.ainvoke("alone")
        with pytest.raises(ConnectionError):
            Rewriting(model=Answering(), fails=1).invoke("failing")
        await asyncio.to_thread(flush)
    finally:
        uninstall()
    failing, alone, run = store
    assert places(run) == [(["search"], True, None)]
    assert (alone.scenario.input, failing.scenario.input) == ("alone", "failing")
    assert failing.error == "ConnectionError: the index is away"
    assert [len(each.completion_ids) for each in (alone, failing)] == [1, 1]
    ledger = connected.app.state.server.ledger
    for each in (alone, run):
        assert [row.rollout for row in ledger.read(each.completion_ids).values()] == [each.rollout_id]


async def test_the_end_of_a_retrievers_chain_gives_back_no_version(connected: TrainerServer) -> None:
    leases, handler = connected.app.state.server.leases, ARTCallbackHandler()

    def held() -> bool:
        release.flush(10)
        return handler.scope.rollout_id in holders(leases)

    inside: list[bool] = []
    retriever = Rewriting(model=ChatART(policy="agent", max_tokens=20))
    graph = searching(retriever, then=lambda: inside.append(held()))
    await graph.ainvoke({"messages": []}, {"callbacks": [handler]})
    assert inside == [True]
    assert not await asyncio.to_thread(held)
