"""Chat models to compare a policy with: they have demonstrations in their prompts, and nothing was trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

from art_langgraph import ChatART, Conversation
from art_langgraph.llm.target import check_litellm, load_litellm

MAX_TOKENS = 1024
"""Largest number of tokens in an answer of a litellm model: many of them think before they answer."""
TIMEOUT = 120.0
"""Seconds for an answer of a litellm model."""


def with_demonstrations(
    messages: Sequence[BaseMessage], demonstrations: Sequence[Conversation], shots: int
) -> list[BaseMessage]:
    """A prompt with demonstrations behind its system message.

    Args:
        messages: The prompt. Its first message is a system message.
        demonstrations: Conversations to choose from. Those with another system message are for another role.
        shots: How many to show.
    """
    system, *others = messages
    fitting = [shown for shown in demonstrations if shown.messages[0]["content"] == system.content]
    said = [message for shown in fitting[:shots] for message in shown.messages[1:]]
    plain = [{name: value for name, value in message.items() if name != "weight"} for message in said]
    return [system, *convert_to_messages(plain), *others]


class PromptedChatART(ChatART):
    """A policy of the trainer server with demonstrations in its prompts.

    Args:
        demonstrations: As those of `with_demonstrations`.
        shots: As that of `with_demonstrations`.

    All other arguments are ChatART's.
    """

    demonstrations: Sequence[Conversation] = Field(repr=False)
    shots: int

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        messages = self._convert_input(input_).to_messages()
        shown = with_demonstrations(messages, self.demonstrations, self.shots)
        return super()._get_request_payload(shown, stop=stop, **kwargs)


class LiteLLMChat(BaseChatModel):
    """A model that litellm knows, with demonstrations in its prompts, at temperature 0. It answers `ainvoke` alone.

    Its address and key come from the provider's environment variables, such as OPENAI_API_BASE and OPENAI_API_KEY.

    Args:
        model: Name of the model, such as "openai/gpt-4o-mini".
        demonstrations: As those of `with_demonstrations`.
        shots: As that of `with_demonstrations`.
        usd: What its answers cost until now, in USD. None: the price of an answer is not known.
    """

    model: str
    demonstrations: Sequence[Conversation] = Field(repr=False)
    shots: int
    usd: float | None = 0.0

    @property
    def _llm_type(self) -> str:
        return "litellm"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools that it may call."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError(f"{self.model} is asked by ainvoke() alone: make the node of the graph async")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        shown = with_demonstrations(messages, self.demonstrations, self.shots)
        response = await complete(self.model, convert_to_openai_messages(shown), **kwargs)
        price = response._hidden_params.get("response_cost")
        self.usd = None if price is None or self.usd is None else self.usd + price
        return ChatResult(generations=[ChatGeneration(message=_message(response))])


async def complete(model: str, messages: Any, **options: Any) -> Any:
    """The answer of a model that litellm knows, at temperature 0, as litellm gives it.

    Args:
        model: Name of the model.
        messages: The prompt, as OpenAI's API has it.
        **options: Further options of the request, such as `tools`.
    """
    check_litellm(model)
    litellm = await load_litellm()
    return await litellm.acompletion(
        model=model,
        messages=messages,
        temperature=0.0,
        max_tokens=MAX_TOKENS,
        drop_params=True,  # some models take no temperature
        timeout=TIMEOUT,
        num_retries=2,
        **options,
    )


def _message(response: Any) -> AIMessage:
    """The answer, its tool calls and its tokens. Arguments that are no JSON object are left out."""
    said, usage = response.choices[0].message, getattr(response, "usage", None)
    calls = [
        {"name": call.function.name, "args": _arguments(call.function.arguments), "id": call.id}
        for call in said.tool_calls or ()
    ]
    counted = usage and UsageMetadata(
        input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens, total_tokens=usage.total_tokens
    )
    return AIMessage(said.content or "", tool_calls=calls, usage_metadata=counted or None)


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}
