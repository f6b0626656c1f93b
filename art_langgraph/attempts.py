"""Which runs of a graph's nodes count: those that LangGraph did not run again, and did not leave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from trainer_server.wire.rollouts import TraceNode

Supersession = Literal["retry", "resume", "fork"]
"""Why something does not count: a retry after an error, a resume after an interrupt, or a fork, in which the thread
went on from a checkpoint before it."""


def parent_namespace(namespace: str) -> str:
    """The checkpoint namespace of the graph that a node belongs to.

    Args:
        namespace: Of the node, or of a graph that runs in it. A number at its end tells a graph from others in the
            same node.
    """
    node, _, number = namespace.rpartition("|")
    return (node if number.isdigit() else namespace).rpartition("|")[0]


class NodeRun(TraceNode):
    """A run of a node, or of a task of the functional API."""

    caller: str | None = None
    """Id of the graph's run that ran the node; of a task, its `parent`, which called it. A retry has the same caller, a
    run that goes on from a checkpoint another. None: it was not recorded."""
    thread: str | None = None
    """LangGraph's thread."""
    resumes: Literal["newest", "checkpoint"] | None = None
    """State of its thread that the graph's run went on from, having no input of its own: the newest, or a checkpoint.
    None: it went on from none, or this is a task."""
    started: float  # unlike the wire's times, those of imported runs are not checked
    seconds: float = 0.0

    @property
    def is_task(self) -> bool:
        """Whether it is a task of the functional API, or of a node that calls tasks."""
        return self.parent is not None and self.caller == self.parent


class Attempts:
    """Runs of nodes, in the order of their start: which of them were repeated or left, so that they do not count.

    This follows from the ids of LangGraph's tasks, which depend on the checkpoint and are in checkpoint namespaces. Two
    node runs of one namespace are attempts at the same task.

    - A retry, by the same run of the graph, repeats the node with all that it encloses.
    - A run of the graph that goes on from a checkpoint repeats the node alone. Tasks that have ended inside of the node
      have their results, and its subgraphs go on from their own checkpoints. A subgraph that keeps none begins anew:
      with other ids, at a step that it had before.
    - A fork goes on from an earlier checkpoint of the thread, with other ids. What came after that checkpoint is left.

    Args:
        nodes: Node runs that have started already.
    """

    def __init__(self, nodes: Iterable[NodeRun] = ()) -> None:
        self.supersessions: dict[str | None, Supersession] = {}
        """Why an attempt does not count, by its id."""
        self._effects: defaultdict[object, list[str | None]] = defaultdict(list)
        """The attempts that something superseded, so that it can be taken back."""
        self._runs: dict[str | None, NodeRun] = {}
        """By attempt."""
        self._at: defaultdict[str, list[NodeRun]] = defaultdict(list)
        """By checkpoint namespace: the attempts at a node."""
        self._inside: defaultdict[str | None, list[NodeRun]] = defaultdict(list)
        """By attempt: the node runs that it encloses."""
        self._graphs: defaultdict[str, defaultdict[tuple[str | None, str | None], list[NodeRun]]] = defaultdict(
            lambda: defaultdict(list)
        )
        """By checkpoint namespace of a graph, and by enclosing attempt and caller: the runs of its nodes, no tasks."""
        for node in nodes:
            self.add(node)

    def add(self, node: NodeRun) -> None:
        """A node run has started."""
        if why := self.supersessions.get(node.parent):  # in a branch that outlives its attempt
            self.supersessions[node.attempt] = why
        if not node.is_task:
            self._compare(node)
            self._graphs[parent_namespace(node.namespace)][node.parent, node.caller].append(node)
        if earlier := self._at[node.namespace]:
            self._repeat(node, earlier)
        earlier.append(node)
        self._runs[node.attempt] = node
        self._inside[node.parent].append(node)

    def _repeat(self, node: NodeRun, earlier: Sequence[NodeRun]) -> None:
        """A node run is another attempt at what earlier ones attempted."""
        if not _goes_on(earlier[-1], node):
            for run in earlier:
                self._supersede(run, "retry", run.attempt)
            return
        for before, run in zip((None, *earlier), earlier, strict=False):
            if before is None or _goes_on(before, run):
                self._take_back(run.attempt)
                self.supersessions.setdefault(run.attempt, "resume" if run.interrupted else "retry")
            else:  # a retry: what it encloses has other ids than those that are looked for now
                self._supersede(run, "retry", run.attempt)

    def _compare(self, node: NodeRun) -> None:
        """Supersedes what earlier runs of a node's graph did, if the node's run does not go on from there.

        The first step decides. A node in it that had no chance to start before has no known id, but another one has.
        """
        graph = self._graphs[parent_namespace(node.namespace)]
        if not (earlier := self._earlier(node, graph)):
            return
        mine = [*graph.get((node.parent, node.caller), ()), node]
        namespaces = {run.namespace for run in earlier}
        repeats = [run for run in mine if run.namespace in namespaces]
        first, cause = mine[0].step or 0, (node.parent, node.caller)
        if repeats:
            self._take_back(cause)
        elif (node.step or 0) > first:
            return
        elif node.parent is not None:
            for run in earlier if any((run.step or 0) >= first for run in earlier) else ():
                self._supersede(run, self.supersessions.get(run.parent, "resume"), cause)
        if node.parent is not None:
            self._supersede_unfinished(node, () if repeats else earlier, cause)
            return
        remaining = [run for run in earlier if run.attempt not in self.supersessions]
        if repeats:
            last = max(run.step or 0 for run in repeats)
        elif node.resumes == "checkpoint" or any((run.step or 0) >= first for run in remaining):
            last = first - 2  # the fork has a checkpoint, thus a step, of its own
        else:
            last = first
        for run in remaining:
            if (run.step or 0) > last:
                self._supersede(run, "fork", cause)
        self._supersede_unfinished(node, () if repeats else remaining, cause)

    def _supersede_unfinished(self, node: NodeRun, earlier: Iterable[NodeRun], cause: object) -> None:
        """Supersedes earlier runs of a node that did not end: somebody changed the state, which gave it another id."""
        for run in earlier:
            if run.attempt not in self.supersessions and _unfinished(run) and run.node == node.node:
                self._supersede(run, "resume" if run.interrupted else "retry", cause)

    def _earlier(
        self, node: NodeRun, graph: Mapping[tuple[str | None, str | None], Sequence[NodeRun]]
    ) -> list[NodeRun]:
        """What earlier runs did of a graph that a node belongs to, where the node's run may go on from there: runs of
        the same thread; or of a subgraph, in earlier attempts at the node that encloses it."""
        if node.parent is None:
            return [
                run
                for (parent, caller), runs in graph.items()
                if node.resumes and parent is None and caller != node.caller
                for run in runs
                if run.thread == node.thread
            ]
        enclosing = self._runs.get(node.parent)
        attempts = {run.attempt for run in self._at[enclosing.namespace]} - {node.parent} if enclosing else set()
        return [run for (parent, _), runs in graph.items() if parent in attempts for run in runs]

    def _supersede(self, run: NodeRun, why: Supersession, cause: object) -> None:
        """A run, and all that it encloses, does not count."""
        if run.attempt not in self.supersessions:
            self.supersessions[run.attempt] = why
            self._effects[cause].append(run.attempt)
        for inner in self._inside[run.attempt]:
            self._supersede(inner, why, cause)

    def _take_back(self, cause: object) -> None:
        """What something superseded counts again."""
        for attempt in self._effects.pop(cause, ()):
            del self.supersessions[attempt]


def _goes_on(before: NodeRun, run: NodeRun) -> bool:
    """Whether a node runs again because its graph goes on from a checkpoint. Otherwise it is retried."""
    return before.interrupted or before.caller != run.caller


def _unfinished(run: NodeRun) -> bool:
    """Whether a node run raised, waits, or was left behind before it ended."""
    return run.error is not None or run.interrupted or not run.seconds


class _NodeCall(Protocol):
    attempt: str | None
    superseded: Supersession | None


def remark(calls: Iterable[_NodeCall], before: Mapping[Any, Supersession], now: Mapping[Any, Supersession]) -> None:
    """Marks calls as superseded where the node runs are that made them, and takes back what held before.

    Args:
        calls: The calls. Other marks, such as those of a chain's retry, stay.
        before: By attempt, as the calls are marked now.
        now: By attempt.
    """
    for call in calls:
        if call.superseded == before.get(call.attempt):
            call.superseded = now.get(call.attempt)
