"""ChatART against langchain-tests, the ecosystem's own suite, through the real gateway."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.unit_tests import ChatModelUnitTests

from art_langgraph import ChatART


@pytest.mark.usefixtures("connected")
class TestUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatART

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"policy": "agent"}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"ART_BASE_URL": "http://127.0.0.1:1", "ART_API_KEY": "from-env"}, {"policy": "agent"}, {
            "openai_api_base": "http://127.0.0.1:1/v1"
        }  # fmt: skip
