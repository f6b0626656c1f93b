"""A LangChain chat model as a target of `LLM`, asked through its own structured output."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.load import dumps
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from pydantic import BaseModel

from art_langgraph.llm.faults import Fault
from art_langgraph.llm.modes import Message, Mode, request
from art_langgraph.llm.target import Reply, has_litellm, load_litellm

log = logging.getLogger("art_langgraph")

_METHODS = {"schema": "json_schema", "tool": "function_calling"}
"""Methods of `with_structured_output`, by mode."""
_FINISH_REASONS = {"max_tokens": "length", "refusal": "content_filter", "safety": "content_filter"}
"""OpenAI's finish reasons, by those of other providers."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A LangChain chat model. Temperature, address, key and its own retries are set on the model itself."""

    model: BaseChatModel

    @property
    def name(self) -> str:
        """The provider's name of the model, or its class."""
        return str(getattr(self.model, "model_name", None) or getattr(self.model, "model", type(self.model).__name__))

    @property
    def identity(self) -> Mapping[str, Any] | None:
        """Settings of the model as LangChain serialises them, without keys; None where LangChain cannot."""
        return {"langchain": dumps(self.model)} if self.model.is_lc_serializable() else None

    @property
    def endpoint(self) -> str:
        return f"{type(self.model).__qualname__} {self.name} at {getattr(self.model, 'openai_api_base', None)}"

    async def load(self) -> None:
        if has_litellm() and not self._is_ours():  # which knows prices
            await load_litellm()

    async def complete(self, mode: Mode, messages: Sequence[Message], answer: type[BaseModel], timeout: float) -> Reply:
        if mode == "text":
            message = await self.model.ainvoke(request(mode, messages, answer)["messages"])
        else:
            # As a dict: with a class the openai package parses the answer itself and loses one that does not fit.
            bound_model = self._bind_schema(mode, answer)
            message = (await bound_model.ainvoke([dict(entry) for entry in messages]))["raw"]
        facts = message.response_metadata
        reason = str(facts.get("finish_reason") or facts.get("stop_reason") or "").lower()
        usage: Mapping[str, Any] = message.usage_metadata or {}
        tokens = int(usage.get("input_tokens", 0)), int(usage.get("output_tokens", 0))
        return Reply(
            text=_read_answer(message),
            prompt_tokens=tokens[0],
            completion_tokens=tokens[1],
            price=await self._price(*tokens),
            finish_reason=_FINISH_REASONS.get(reason, reason),
            refusal=message.additional_kwargs.get("refusal"),
        )

    def _bind_schema(self, mode: Mode, answer: type[BaseModel]) -> Runnable[LanguageModelInput, Any]:
        """The model, bound to a way of asking. Raises Fault where its package does not have that way."""
        try:
            return self.model.with_structured_output(
                answer.model_json_schema(), method=_METHODS[mode], include_raw=True
            )
        except (TypeError, ValueError) as error:
            message = f"with_structured_output(method={_METHODS[mode]!r}): {type(error).__name__}: {error}"
            raise Fault("bad_request", message, other_mode=True) from error

    def _is_ours(self) -> bool:
        """Whether our own server answers."""
        from art_langgraph.chat_model import ChatART

        return isinstance(self.model, ChatART)

    async def _price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """USD by litellm's price list; None where it has no price, or is not installed. Our own server bills nobody."""
        if self._is_ours():
            return 0.0
        if not has_litellm():
            return None
        litellm = await load_litellm()
        if self.name not in litellm.model_cost:
            return None
        try:
            return float(sum(litellm.cost_per_token(self.name, prompt_tokens, completion_tokens)))
        except Exception as error:  # entries of the list that litellm itself cannot read: the answer is paid for
            log.debug("no price of %s is known: %r", self.name, error)
            return None


def _read_answer(message: AIMessage) -> str:
    """The answer in a message: the arguments of its tool call, or its text."""
    for call in message.tool_calls:
        return json.dumps(call["args"])
    for invalid_call in message.invalid_tool_calls:
        return invalid_call["args"] or ""
    return str(message.text)
