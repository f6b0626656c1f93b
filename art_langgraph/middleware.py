"""ARTMiddleware: an agent of `langchain.agents.create_agent` on a policy, with one argument."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware

from art_langgraph.capture.process import install
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

    policy: name of the policy. capture: record every run of this process into `store`, as `install` does; runs inside
    `rollout` record themselves. options: passed to ChatART. The agent's own model is not called. Tool calls need no
    wrapping: the callbacks hear of them, also of calls of tools that the agent does not have.
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
        return handler(request.override(model=self.model))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelAnswer:
        return await handler(request.override(model=self.model))
