"""ARTMiddleware: an agent of `langchain.agents.create_agent` on a policy, with one argument."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware

from art_langgraph.attempts import parent_namespace
from art_langgraph.capture.process import install
from art_langgraph.capture.scope import current, enclosing_run
from art_langgraph.chat_model import ChatART
from art_langgraph.store import TrajectoryStore

if TYPE_CHECKING:
    from langchain.agents.middleware.types import ModelRequest, ModelResponse
    from langchain_core.messages import AIMessage

    ModelAnswer = ModelResponse[Any] | AIMessage
    _Middleware = AgentMiddleware[Any, Any, Any]
else:  # these are not generic in every version that is supported
    _Middleware = AgentMiddleware


class ARTMiddleware(_Middleware):
    """Routes the agent's model calls to a policy.

        agent = create_agent("openai:gpt-5", tools, middleware=[ARTMiddleware(policy="agent")])

    The agent's own model is not called. Agents inside the agent - sub-agents of deepagents, agents that a tool runs -
    make their model calls themselves: give each the same middleware, or a ChatART as its model. In a deep agent,
    `create_deep_agent(model=middleware.model, …)` reaches the agent and all sub-agents without a `model` of their own.
    When a recorded run meets a sub-agent that is not routed, a warning names it.

    Args:
        policy: Name of the policy.
        capture: Record every run of this process, as `install` does. Runs inside `rollout` record themselves.
        store: Where `capture` writes.
        options: Passed to ChatART.
    """

    def __init__(
        self, policy: str, *, capture: bool = False, store: TrajectoryStore | None = None, **options: Any
    ) -> None:
        super().__init__()
        if capture:
            install(store)
        self.model = ChatART(policy=policy, **options)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelAnswer:
        _note_route()
        return handler(request.override(model=self.model))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelAnswer:
        _note_route()
        return await handler(request.override(model=self.model))


def _note_route() -> None:
    """Tells the run that the agent around here is routed."""
    if scope := current():
        _, metadata = enclosing_run()
        scope.routed_agents.add(parent_namespace(str(metadata.get("langgraph_checkpoint_ns") or "")))
