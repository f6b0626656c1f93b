"""What the sentence asks for, as rules; and a chat model that writes and judges by them, where no other is named."""

from __future__ import annotations

import json
import random
import re
from statistics import fmean
from typing import Any

from art_examples.autorl.messages import invented
from art_examples.learning.judged import graded, last_said
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

MOST_WORDS = 15
POLITE = ("please", "thank", "sorry", "welcome", "glad", "happy", "pleasure", "apologi", "kindly", "certainly")


def rules(answer: str) -> dict[str, bool]:
    """Which rules an answer keeps: it is one sentence, has at most MOST_WORDS words, and a polite one."""
    text = answer.strip()
    return {
        "sentence": re.fullmatch(r"[^.!?\n]+[.!?]", text) is not None,
        "short": 0 < len(text.split()) <= MOST_WORDS,
        "polite": any(word in text.lower() for word in POLITE),
    }


class RulesModel(BaseChatModel):
    """Stands in for a language model: it writes messages of guests, and scores runs by the share of rules they keep."""

    @property
    def _llm_type(self) -> str:
        return "rules"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        asked = "\n".join(message.text for message in messages)
        prompt = next(message.text for message in messages if message.type == "human")
        answer = scores(prompt) if re.search(r"^#\w+ candidate 1$", prompt, re.MULTILINE) else written(asked)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(json.dumps(answer)))])


def written(asked: str) -> dict[str, Any]:
    """Eight inputs that the request does not show. asked: the whole request."""
    fresh = [message for message in invented() if message not in asked]
    return {"inputs": random.Random(asked).sample(fresh, min(8, len(fresh))) or invented()[:1]}


def scores(prompt: str) -> dict[str, Any]:
    """Scores of the candidates in a prompt of RULER: the share of the rules that the last message keeps."""
    return graded(prompt, lambda begun, went_on: fmean(rules(last_said(went_on)).values()))
