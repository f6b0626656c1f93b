"""The runs that LangChain reports, as a tree: which node, of which agent, something runs in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from art_langgraph.trajectory import NodeRun, Place


@dataclass(slots=True)
class Run:
    """A chain or tool under way or done. node: set where it is the run of a graph's node."""

    parent: UUID | None
    namespace: str = ""
    node: NodeRun | None = None
    checkpointed: bool = False


class Runs:
    """All runs of a graph's run, by their ids: events of the end of something carry an id only."""

    def __init__(self) -> None:
        self._runs: dict[UUID, Run] = {}
        self._agents: dict[str, str | None] = {}
        """By checkpoint namespace: the agent that the node of that namespace belongs to."""
        self._lock = threading.Lock()

    def __contains__(self, run_id: UUID | None) -> bool:
        return run_id in self._runs

    def chain(self, run_id: UUID, parent: UUID | None, metadata: dict[str, Any]) -> bool:
        """A chain starts.

        Returns:
            Whether it opens a namespace, as the run of a node does; the chains inside it carry the same metadata.
        """
        namespace = str(metadata.get("langgraph_checkpoint_ns") or "")
        with self._lock:
            above = self._runs.get(parent) if parent else None
            self._runs[run_id] = Run(parent, namespace, checkpointed="thread_id" in metadata)
            self._agents.setdefault(namespace, metadata.get("lc_agent_name"))  # graphs inside the node come later
        return bool(namespace) and (above is None or above.namespace != namespace)

    def tool(self, run_id: UUID, parent: UUID | None) -> None:
        """A tool starts, which may run a graph."""
        with self._lock:
            above = self._runs.get(parent) if parent else None
            self._runs[run_id] = Run(parent, above.namespace if above else "")

    def node(self, run_id: UUID) -> NodeRun | None:
        """The node run of that id."""
        run = self._runs.get(run_id)
        return run.node if run else None

    def set_node(self, run_id: UUID, node: NodeRun) -> dict[Literal["retry", "resume"], set[str | None]]:
        """A run is that of a node.

        Returns:
            Earlier attempts at the node, and what their subgraphs did unless a checkpointer kept it for the retry.
        """
        superseded: dict[Literal["retry", "resume"], set[str | None]] = {}
        with self._lock:
            runs = [run for run in self._runs.values() if run.node]  # in order of their start: outer ones first
            self._runs[run_id].node = node
        for run in runs:
            if run.node and run.node.namespace == node.namespace and (run.node.error or run.node.interrupted):
                attempts = {run.node.attempt}
                if run.node.error and not run.checkpointed:
                    for inner in runs:
                        if inner.node and inner.node.parent in attempts:
                            attempts.add(inner.node.attempt)
                superseded.setdefault("resume" if run.node.interrupted else "retry", set()).update(attempts)
        return superseded

    def place(self, parent: UUID | None, metadata: dict[str, Any]) -> dict[str, Any]:
        """Where something under `parent` runs: in the nearest node run above, which is inside the one above that.

        Args:
            parent: Id of the run that makes the call.
            metadata: LangGraph's, of the call.

        Returns:
            The fields of a `Place`.
        """
        above: list[str | None] = []
        with self._lock:
            while parent is not None and (run := self._runs.get(parent)) and len(above) < 2:
                if run.node:
                    above.append(run.node.attempt)
                parent = run.parent
        namespace = str(metadata.get("langgraph_checkpoint_ns") or "")
        task = metadata.get("langgraph_path") or ()
        agents = self._agents_of(namespace, metadata.get("lc_agent_name"))
        return Place(
            node=metadata.get("langgraph_node"),
            agent=agents[-1] if agents else None,
            path=_path(namespace, agents),
            namespace=namespace,
            step=metadata.get("langgraph_step"),
            branch=next((part for part in task if type(part) is int), None) if task[:1] == ("__pregel_push",) else None,
            attempt=above[0] if above else None,
            parent=above[1] if len(above) > 1 else None,
        ).model_dump()

    def _agents_of(self, namespace: str, innermost: str | None) -> list[str | None]:
        """The agent of each node in a namespace, from the outermost graph inwards."""
        if not namespace:
            return []
        parts = namespace.split("|")
        with self._lock:
            above = [self._agents.get("|".join(parts[:length])) for length in range(1, len(parts))]
            return [*above, self._agents.setdefault(namespace, innermost)]


def _path(namespace: str, agents: Sequence[str | None]) -> list[str]:
    """Names of the nodes in a namespace, each new agent's name before its nodes. A nested graph inherits the name."""
    path: list[str] = []
    above = None
    for part, agent in zip(namespace.split("|") if namespace else [], agents, strict=True):
        if agent is not None and agent != above and agent not in path[-1:]:
            path.append(agent)
        path.append(part.partition(":")[0])
        above = agent
    return path
