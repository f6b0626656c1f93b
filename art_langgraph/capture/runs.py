"""The runs that LangChain reports, as a tree: which node, of which agent, something runs in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from art_langgraph.trajectory import NodeRun, Place

_HOOKS = (".before_agent", ".before_model", ".after_model", ".after_agent")
"""How the names of nodes end that belong to one middleware."""


@dataclass(slots=True)
class Run:
    """A chain, tool or retriever under way or done.

    Args:
        parent: The run that it was started in.
        namespace: LangGraph's checkpoint namespace.
        node: Set where it is the run of a graph's node.
        resumes: State of its thread that a chain goes on from, the newest or a checkpoint; None: it goes on from none.
    """

    parent: UUID | None
    namespace: str = ""
    node: NodeRun | None = None
    resumes: Literal["newest", "checkpoint"] | None = None


class Runs:
    """All runs of a graph's run, by their ids: events of the end of something carry an id only."""

    def __init__(self) -> None:
        self._runs: dict[UUID, Run] = {}
        self._agents: dict[str, str | None] = {}
        """By checkpoint namespace: the agent that the node of that namespace belongs to."""
        self._repeated: set[UUID] = set()
        """Chains, tools and retrievers that LangChain ran again: by `with_retry`, or a tool by a middleware."""
        self._failed: set[UUID] = set()
        """Chains, tools, retrievers and model calls that ended with an error."""
        self._lock = threading.Lock()

    def __contains__(self, run_id: UUID | None) -> bool:
        return run_id in self._runs

    def add_chain(
        self,
        run_id: UUID,
        parent: UUID | None,
        metadata: dict[str, Any],
        resumes: Literal["newest", "checkpoint"] | None = None,
    ) -> bool:
        """Adds a chain that starts.

        Args:
            run_id: Its id.
            parent: Id of the run that it is started in; None: nothing encloses it.
            metadata: LangChain's, with LangGraph's checkpoint namespace.
            resumes: From which state of its thread it goes on, where it has no input of its own.

        Returns:
            Whether it opens a namespace, as the run of a node does; the chains inside it carry the same metadata.
        """
        namespace = str(metadata.get("langgraph_checkpoint_ns") or "")
        with self._lock:
            above = self._runs.get(parent) if parent else None
            self._runs[run_id] = Run(parent, namespace, resumes=resumes)
            self._agents.setdefault(namespace, metadata.get("lc_agent_name"))  # graphs inside the node come later
        return bool(namespace) and (above is None or above.namespace != namespace)

    def repeat(self, run_id: UUID, parent: UUID | None) -> None:
        """Marks the failed runs of the same parent as repeated, because a run is another attempt at them. What
        succeeded beside it, such as another input of a batch, is not repeated."""
        with self._lock:
            siblings = {other for other, run in self._runs.items() if run.parent == parent and other != run_id}
            self._repeated |= siblings & self._failed

    def fail(self, run_id: UUID) -> None:
        """Notes that a run ended with an error."""
        with self._lock:
            self._failed.add(run_id)

    def failed(self, run_id: UUID) -> bool:
        """Whether a run ended with an error."""
        return run_id in self._failed

    def get(self, run_id: UUID | None) -> Run:
        """A run by its id; an empty one where the id is unknown."""
        return self._runs.get(run_id, Run(None)) if run_id else Run(None)

    def mark_repeated(self, run_id: UUID) -> None:
        """Notes that a run was repeated."""
        with self._lock:
            self._repeated.add(run_id)

    def repeated(self, run_id: UUID | None) -> bool:
        """Whether a run was repeated, or lies inside one that was."""
        with self._lock:
            while self._repeated and run_id is not None:
                if run_id in self._repeated:
                    return True
                run = self._runs.get(run_id)
                run_id = run.parent if run else None
        return False

    def add_inner(self, run_id: UUID, parent: UUID | None) -> None:
        """Adds a tool or a retriever that starts, which may run chains and graphs."""
        with self._lock:
            above = self._runs.get(parent) if parent else None
            self._runs[run_id] = Run(parent, above.namespace if above else "")

    def place(self, parent: UUID | None, metadata: dict[str, Any]) -> dict[str, Any]:
        """Where something under `parent` runs: in the nearest node run above, which is inside the one above that.

        Args:
            parent: Id of the run that makes the call.
            metadata: LangGraph's, of the call.

        Returns:
            The fields of a `Place`. A model call that a middleware makes inside an agent's node, such as a summary, has
            its purpose (LangChain's `lc_source`) as a node of its own, inside the agent's node.
        """
        above: list[str | None] = []
        with self._lock:
            while parent is not None and (run := self._runs.get(parent)) and len(above) < 2:
                if run.node:
                    above.append(run.node.attempt)
                parent = run.parent
        namespace = str(metadata.get("langgraph_checkpoint_ns") or "")
        task = metadata.get("langgraph_path") or ()
        nodes = _nodes_in(namespace)
        agents = self._agents_of(nodes, metadata.get("lc_agent_name"))
        node, path = metadata.get("langgraph_node"), _path(nodes, agents)
        if (purpose := metadata.get("lc_source")) and not str(node).endswith(_HOOKS):
            node, path = str(purpose), [*path, str(purpose)]
        return Place(
            node=node,
            agent=agents[-1] if agents else None,
            path=path,
            namespace=namespace,
            step=metadata.get("langgraph_step"),
            branch=next((part for part in task if type(part) is int), None) if task[:1] == ("__pregel_push",) else None,
            attempt=above[0] if above else None,
            parent=above[1] if len(above) > 1 else None,
        ).model_dump()

    def _agents_of(self, nodes: Sequence[tuple[str, str]], innermost: str | None) -> list[str | None]:
        """The agent of each node that encloses something, from the outermost graph inwards."""
        if not nodes:
            return []
        with self._lock:
            above = [self._agents.get(namespace) for namespace, _ in nodes[:-1]]
            return [*above, self._agents.setdefault(nodes[-1][0], innermost)]


def _nodes_in(namespace: str) -> list[tuple[str, str]]:
    """The nodes in a checkpoint namespace, from the outermost inwards: the namespace and the name of each.

    LangGraph numbers the graphs that a node calls after its first. A number is no node.
    """
    parts = namespace.split("|") if namespace else []
    return [("|".join(parts[: at + 1]), part.partition(":")[0]) for at, part in enumerate(parts) if not part.isdigit()]


def _path(nodes: Sequence[tuple[str, str]], agents: Sequence[str | None]) -> list[str]:
    """Names of nodes, each new agent's name before its nodes. A nested graph inherits the name."""
    path: list[str] = []
    above = None
    for (_, name), agent in zip(nodes, agents, strict=True):
        if agent is not None and agent != above and agent not in path[-1:]:
            path.append(agent)
        path.append(name)
        above = agent
    return path
