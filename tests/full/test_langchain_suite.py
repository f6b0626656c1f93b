"""ChatART against langchain-tests' integration suite: the real gateway, the real vLLM, the embedded model."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests

from art_langgraph import ChatART
from trainer_server.models import EMBEDDED


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("found_by_clients")
class TestIntegration(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatART

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"policy": EMBEDDED, "max_tokens": 100, "temperature": 0}

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def returns_usage_metadata(self) -> bool:
        return True
