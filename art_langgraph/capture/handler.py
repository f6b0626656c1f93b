"""The callback handler that records the run of a graph: its nodes, model calls and tool calls.

The way of a call into a trajectory: LangChain reports its beginning and its end to `ARTCallbackHandler`. `Runs` has the
tree of the runs so far, which gives the call its place in the graph. The finished `CompletionCall`, `ToolCall` or
`NodeRun` goes to the `Recorder` of the rollout's `Scope`. When the graph has ended, `GraphRun.trajectory` puts its
facts and the recorder's lists together.

Events of the end of something carry no metadata, so all is keyed by run id. Events may come from several threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableWithFallbacks
from langgraph.errors import GraphBubbleUp, GraphInterrupt

from art_langgraph.background.release import release
from art_langgraph.capture.answer import (
    answer_in,
    answer_of,
    completion_id,
    from_cache,
    gateway_id,
    mcp_server,
    messages_in,
    refusal_id,
    served_version,
    structured_content,
    token_counts,
    tool_answer,
    tool_messages,
)
from art_langgraph.capture.graph_run import GraphRun, error_text, resumed_state
from art_langgraph.capture.recorder import Recorder
from art_langgraph.capture.requests import attach
from art_langgraph.capture.runs import Runs
from art_langgraph.capture.scope import Scope, enclosing_run
from art_langgraph.messages import as_written, plain, to_openai
from art_langgraph.notices import warn_once
from art_langgraph.rewards import RewardFunction
from art_langgraph.trajectory import CompletionCall, NodeRun, Place, Scenario, ToolCall, Trajectory
from trainer_server.common import gen_ai, tracing
from trainer_server.common.text_call import text_call

_HIDDEN_TAG = "langsmith:hidden"
"""Tag of LangGraph's own bookkeeping nodes."""
_AGENT = "langchain_create_agent"
"""What the metadata of an agent's nodes has as `ls_integration`."""
_REPEATS = "retry:attempt:"
"""How the tag of a chain or tool begins that LangChain's `with_retry` runs again."""


class ARTCallbackHandler(BaseCallbackHandler):
    """Records model calls, tool calls and node runs, with their place in the graph.

        handler = ARTCallbackHandler()
        output = graph.invoke({"messages": [("user", "2 + 2?")]}, {"callbacks": [handler]})
        trajectory = handler.trajectory(reward=float("4" in output["messages"][-1].text))

    One handler belongs to one run of a graph, resumed or not: make a new one for each.

    Args:
        scope: The rollout that the run belongs to; None: one of its own.
    """

    run_inline = True

    def __init__(self, scope: Scope | None = None) -> None:
        attach()
        self.scope = scope or Scope()
        self._owns_scope = scope is None
        """Whether nobody else gives back the policy versions that the run holds."""
        self.graph = GraphRun(self.scope)
        self._runs = Runs()
        self._models: dict[UUID, tuple[UUID | None, CompletionCall, Mapping[str, Any]]] = {}
        """Model calls under way, each with the run that made it, and what its model was invoked with."""
        self._answers: list[tuple[UUID | None, CompletionCall]] = []
        """Those that have ended, each with the run that made it: its own, where the client did not take the answer."""
        self._tools: dict[UUID, tuple[ToolCall, tuple[str | None, str | None]]] = {}
        """Tools under way, each with name and version of the MCP server behind it, where it says so."""
        self._tool_errors: dict[tuple[str | None, str], UUID] = {}
        """Runs of tools that raised, by the node's attempt and the model's tool call."""
        self._fallbacks: dict[UUID, UUID | None] = {}
        """By run of LangChain's `with_fallbacks`: its newest branch, which has failed when another one starts."""
        self._model_nodes: set[UUID] = set()
        """Runs of the node in which an agent calls its model."""
        self._spans: dict[UUID, tracing.Span] = {}
        """Spans of model and tool calls under way; empty while traces are off."""
        self._lock = threading.Lock()
        self._clock_offset = time.time() - time.monotonic()

    @property
    def root(self) -> UUID | None:
        """Id of the first run that nothing encloses."""
        return self.graph.root

    @property
    def recorder(self) -> Recorder:
        """What has been recorded so far."""
        return self.scope.recorder

    def trajectory(
        self,
        scenario: Scenario | Any = None,
        *,
        reward: float | Mapping[str, float] | RewardFunction | None = None,
        output: Any = None,
    ) -> Trajectory:
        """The run as a trajectory, to be put into a `TrajectoryGroup`, a store or `train_step`.

        Args:
            scenario: The task, in any form that `rollout` takes. Runs of the same scenario are compared with one
                another. None: the graph's input.
            reward: The reward, its named parts (`NodeRewards` for rewards by node), or a function of the trajectory
                that is not async. None: not scored.
            output: The graph's final state. None: what the run returned.

        Returns:
            What has been recorded until now.

        Raises:
            ConfigError: The reward function is async.
        """
        return self.graph.trajectory(scenario, reward, output)

    def _now(self) -> float:
        """Unix time by the clock that nobody sets: what began later has the later time, and differences are durations,
        also where somebody sets the system's clock during the run."""
        return self._clock_offset + time.monotonic()

    def place(self, parent: UUID | None, metadata: dict[str, Any]) -> Place:
        """Where something runs.

        Args:
            parent: Id of the run that makes the call.
            metadata: LangGraph's, of the call.
        """
        return Place(**self._runs.place(parent, metadata))

    def scope_of(self, run_id: UUID | None) -> Scope | None:
        """The rollout that a run belongs to."""
        return self.scope

    def close(self) -> None:
        """The run has ended. Model calls that have no answer by now are recorded without."""
        with self._lock:
            open_calls, self._models = list(self._models.values()), {}
        for caller, call, _ in open_calls:
            call.seconds = self._now() - call.started
            call.error = "the run ended before the answer came"
            self._end(caller, call)
        for run_id in list(self._spans):
            self._end_span(run_id, error="cut_off: the run ended before")

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        metadata = metadata or {}
        self._note_start(run_id, parent_run_id, inputs, kwargs.get("name"), metadata)
        opens_namespace = self._runs.add_chain(run_id, parent_run_id, metadata, resumed_state(inputs, metadata))
        if str(kwargs.get("name")).startswith(RunnableWithFallbacks.__name__):  # of a generic class: its parameters too
            self._fallbacks[run_id] = None
        self._note_repeat(run_id, parent_run_id, tags)
        if not opens_namespace or kwargs.get("name") != metadata.get("langgraph_node") or _HIDDEN_TAG in (tags or []):
            return
        node = NodeRun(**self._runs.place(parent_run_id, metadata), started=self._now())
        node.parent, node.attempt = node.attempt, str(run_id)
        is_task = (metadata.get("langgraph_path") or (None,))[-1] is True  # as Pregel marks what a node calls
        node.caller = node.parent if is_task or parent_run_id is None else str(parent_run_id)
        thread = metadata.get("thread_id")
        node.thread = None if thread is None else str(thread)
        node.resumes = None if is_task else self._runs.get(parent_run_id).resumes
        self._runs.get(run_id).node = node
        if node.node == "model" and metadata.get("ls_integration") == _AGENT:
            self._model_nodes.add(run_id)
        self.recorder.add_node(node)

    def _note_start(
        self, run_id: UUID, parent_run_id: UUID | None, inputs: Any, name: str | None, metadata: Mapping[str, Any]
    ) -> None:
        """Notes that a chain or retriever starts. Where nothing encloses it, it is the run that is recorded."""
        if parent_run_id is None or parent_run_id not in self._runs:
            self.graph.note_start(run_id, inputs, name, metadata)

    def _note_repeat(self, run_id: UUID, parent_run_id: UUID | None, tags: list[str] | None) -> None:
        """Marks what a run that starts repeats, as in `with_retry` and `with_fallbacks` of LangChain."""
        if any(tag.startswith(_REPEATS) for tag in tags or ()):
            self._runs.repeat(run_id, parent_run_id)
            self._drop_repeated()
        if not self._fallbacks:
            return
        # A branch has the same parent as the fallbacks, or they are its parent. Nodes of a graph that is a branch find
        # the fallbacks in the context too, but have the graph for a parent. Branches of a batch find them nowhere else
        # than in their parent.
        above = enclosing_run()[0]
        parents = (above, self._runs.get(above).parent)
        if above not in self._fallbacks or above == run_id or parent_run_id not in parents:
            above = parent_run_id
        if above in self._fallbacks:
            earlier = self._fallbacks[above]
            while earlier is not None and self._runs.failed(earlier):
                self._runs.mark_repeated(earlier)
                earlier = self._fallbacks.get(earlier)  # of fallbacks that are a branch, which need not enclose theirs
            self._drop_repeated()
            self._fallbacks[above] = run_id

    def _drop_repeated(self) -> None:
        """Marks completions inside of runs that were repeated: they no longer count."""
        for caller, call in self._answers:
            if self._runs.repeated(caller):
                call.superseded = call.superseded or "retry"

    def _drop_discarded(self, node: NodeRun, outputs: Any) -> None:
        """Marks answers that a middleware threw away, to send the same request again, when an agent has its answer: as
        where ModelRetryMiddleware meets an answer that does not fit the response format. A draft of another model is
        none of them, unless the client could not parse it."""
        output_ids = {completion_id(message) for message in messages_in(outputs)}
        answers = [
            (run, call) for run, call in self._answers if call.attempt == node.attempt and call.node == node.node
        ]
        final = [call for _, call in answers if call.id is not None and call.id in output_ids]
        for run, call in answers:
            if call.id is None or call.id in output_ids:
                continue
            if any(
                call.messages == later.messages
                and call.started + call.seconds <= later.started
                and (call.model == later.model or (run is not None and self._runs.failed(run)))
                for later in final
            ):
                call.superseded = call.superseded or "retry"

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._end_run(run_id, outputs, None)
        if node := self._runs.get(run_id).node:
            node.seconds = self._now() - node.started
            if run_id in self._model_nodes:
                self._drop_discarded(node, outputs)
            for message in tool_messages(outputs):
                if message.status == "error":
                    # A tool that the graph does not have never runs: no other event reports the call.
                    tool_call = ToolCall(
                        tool=message.name or "",
                        tool_call_id=message.tool_call_id,
                        result=message.text,
                        is_error=True,
                        started=self._now(),
                        **node.model_dump(include=set(Place.model_fields)),
                    )
                    self.recorder.add_unanswered_tool(tool_call)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.fail(run_id)
        self._end_run(run_id, None, error_text(error))
        if node := self._runs.get(run_id).node:
            node.seconds = self._now() - node.started
            if isinstance(error, GraphInterrupt):
                node.interrupted = True
            elif not isinstance(error, GraphBubbleUp):  # how a node hands over to its parent graph
                node.error = error_text(error)

    def _end_run(self, run_id: UUID, output: Any, error: str | None) -> None:
        """Ends a chain or retriever. A run that waits to be resumed keeps its versions, until they expire."""
        if not self.graph.note_end(run_id, output, error) or not self._owns_scope:
            return
        newest = {node.namespace: node for node in self.recorder.nodes}
        if not any(node.interrupted for node in newest.values()):
            release(self.scope.rollout_id, self.scope.servers)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if parent_run_id is None and (enclosing := enclosing_run())[0]:
            parent_run_id, metadata = enclosing
        params = kwargs.get("invocation_params") or {}
        call = CompletionCall(
            id=None,
            model=params.get("model"),
            messages=to_openai(messages[0]),
            started=self._now(),
            **self._runs.place(parent_run_id, metadata or {}),
        )
        self._note_repeat(run_id, parent_run_id, tags)
        with self._lock:
            self._models[run_id] = parent_run_id, call, params
        if tracing.on():
            name, about = gen_ai.chat(call.model, rollout=self.scope.rollout_id, node=call.node)
            self._spans[run_id] = span = tracing.begin(name, about, kind="client")
            tracing.calling(span)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            caller, request, params = self._models.pop(run_id, (None, None, {}))
        if request is None:
            return
        if run_id in self._spans:
            self._end_span(run_id, answer_of(response))
        self._end_answers(caller, request, params, response)

    def _end_answers(
        self, caller: UUID | None, request: CompletionCall, params: Mapping[str, Any], response: LLMResult
    ) -> None:
        """Ends a model call that was answered: with `n` > 1 it is a completion for each choice."""
        seconds = self._now() - request.started
        output = response.llm_output or {}  # with n > 1 the messages lack what is in here
        common_id, common_model = gateway_id(output.get("system_fingerprint")), output.get("model_name")
        for index, generation in enumerate(response.generations[0]):
            if not isinstance(generation, ChatGeneration):
                continue
            call = request.model_copy(update={"seconds": seconds})
            answer_id = completion_id(generation.message) or common_id
            call.cached = from_cache(generation.message)
            counts = token_counts(generation.message, first=index == 0)
            call.prompt_tokens, call.cached_tokens, call.sampled_tokens = counts
            call.id = answer_id if answer_id is None or index == 0 else f"{answer_id}.{index}"
            if call.id:
                call.version = served_version(generation.message.response_metadata.get("model_name") or common_model)
            (call.message,) = to_openai([as_written(generation.message)])
            call.text_call = text_call(call.message, params)
            self._end(caller, call)
            if call.id is None and self.scope.beyond_routes(call.namespace):
                name, model = "/".join(call.path[:-1]), call.model or "a model that is no policy"
                warn_once(
                    f"sub-agent {name!r} was answered by {model}: ARTMiddleware reaches the model calls of its own "
                    "agent, not those of agents inside it",
                    "To train it, give its `middleware` the same ARTMiddleware, or its `model` a ChatART",
                )

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            caller, call, params = self._models.pop(run_id, (None, None, {}))
        self._runs.fail(run_id)
        answer = answer_in(error)
        self._end_span(run_id, answer_of(answer) if answer else None, error)
        if call and answer:  # as where a parser behind the model raises: the answer counts, and the node has the error
            self._runs.add_inner(run_id, caller)  # what LangChain repeats may be the call alone
            self._end_answers(run_id, call, params, answer)
        elif call:
            call.seconds = self._now() - call.started
            call.id, call.error = refusal_id(error), error_text(error)
            self._end(caller, call)

    def _end_span(
        self, run_id: UUID, attributes: tracing.Attributes | None = None, error: BaseException | str | None = None
    ) -> None:
        """Ends the span of a call, if it has one."""
        if (span := self._spans.pop(run_id, None)) is not None:
            span.set(attributes or {})
            if error is not None:
                span.fail(error)
            span.end()

    def _end(self, caller: UUID | None, call: CompletionCall) -> None:
        if self._runs.repeated(caller):
            call.superseded = "retry"
        self._answers.append((caller, call))
        self.recorder.add_completion(call)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        call = ToolCall(
            tool=str((serialized or {}).get("name") or kwargs.get("name")),
            arguments=plain(inputs) if isinstance(inputs, dict) else {"input": input_str},
            tool_call_id=kwargs.get("tool_call_id"),
            started=self._now(),
            **self._runs.place(parent_run_id, metadata or {}),
        )
        with self._lock:
            self._tools[run_id] = call, mcp_server(metadata or {})
        self._runs.add_inner(run_id, parent_run_id)
        self._note_repeat(run_id, parent_run_id, tags)
        if call.tool_call_id is not None and (
            failed_run := self._tool_errors.pop((call.attempt, call.tool_call_id), None)
        ):
            self._runs.mark_repeated(failed_run)  # as ToolRetryMiddleware does
            self._drop_repeated()
        self.recorder.open_tool(call, run_id)
        if tracing.on():
            server, _ = mcp_server(metadata or {})
            name, about = gen_ai.tool(call.tool, call=call.tool_call_id, server=server)
            self._spans[run_id] = tracing.begin(name, {**about, "art.rollout.id": self.scope.rollout_id})

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            call, server = self._tools.pop(run_id, (None, (None, None)))
        self._end_span(run_id)
        if call is None:
            return
        call.seconds = self._now() - call.started
        text, message = tool_answer(output, call.tool_call_id)
        if message is not None:
            call.tool_call_id = message.tool_call_id
            call.is_error = call.is_error or message.status == "error"
        if call.result is None:
            call.result = text
        if call.structured is None:
            call.structured = plain(structured_content(message))
        _name_server(call, server)
        self.recorder.close_tool(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            call, server = self._tools.pop(run_id, (None, (None, None)))
        self._runs.fail(run_id)
        self._end_span(run_id, error=None if isinstance(error, GraphBubbleUp) else error)
        if call:
            _name_server(call, server)
            call.seconds = self._now() - call.started
            call.is_error, call.result = not isinstance(error, GraphBubbleUp), error_text(error)
            if call.is_error and call.tool_call_id is not None:
                self._tool_errors[call.attempt, call.tool_call_id] = run_id
            self.recorder.close_tool(run_id)

    def on_retriever_start(
        self,
        serialized: dict[str, Any],
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._note_start(run_id, parent_run_id, query, kwargs.get("name"), metadata or {})
        self._runs.add_inner(run_id, parent_run_id)
        self._note_repeat(run_id, parent_run_id, tags)

    def on_retriever_end(self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any) -> None:
        self._end_run(run_id, documents, None)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.fail(run_id)
        self._end_run(run_id, None, error_text(error))


def _name_server(call: ToolCall, server: tuple[str | None, str | None]) -> None:
    """Names the MCP server behind a tool, unless the record of the MCP call itself has named it."""
    if call.server is None:
        call.server, call.server_version = server
