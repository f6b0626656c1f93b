"""Chat models of tests: the type of the fixture `make`, and one that answers as our gateway does, without any."""

from __future__ import annotations

import uuid
from typing import Any, Protocol

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI


class MakeModel(Protocol):
    """Makes a chat model that asks a policy."""

    def __call__(self, policy: str = "agent", **options: Any) -> ChatOpenAI: ...


class Answering(BaseChatModel):
    """Answers at once, under ids that look like the gateway's."""

    policy: str = "agent"
    says: str = "fine"

    @property
    def _llm_type(self) -> str:
        return "answering"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.policy}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        facts = {"system_fingerprint": f"chatcmpl-{uuid.uuid4().hex}", "model_name": f"{self.policy}@0"}
        message = AIMessage(self.says, response_metadata=facts)
        return ChatResult(generations=[ChatGeneration(message=message)], llm_output=facts)
