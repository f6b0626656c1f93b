"""Ids of answers: those of every API that the gateway offers lead to the completion in the ledger.

A completion is recorded as `chatcmpl-…`. The Responses API calls it `resp_…`, the Messages API `msg_…`, and the
completions API `cmpl-…`; what follows is the same.
"""

from __future__ import annotations

import re

CHAT = "chatcmpl-"
RESPONSE = "resp_"
MESSAGE = "msg_"
TEXT = "cmpl-"

_OTHER = re.compile(rf"(?:{RESPONSE}|{MESSAGE}|{TEXT})([0-9a-f]{{32}}(?:\.\d+)?)")
"""OpenAI's and Anthropic's own ids have other lengths, or other characters."""


def answer_id(completion_id: str, prefix: str) -> str:
    """The id of a completion in another API. prefix: RESPONSE, MESSAGE or TEXT."""
    return prefix + completion_id.removeprefix(CHAT)


def completion_id(given: object) -> str | None:
    """The id of the ledger's completion that an answer's id leads to; None for an id of another server.

    Args:
        given: Id of an answer of any of the APIs.
    """
    if not isinstance(given, str):
        return None
    if given.startswith(CHAT):
        return given
    return CHAT + found[1] if (found := _OTHER.fullmatch(given)) else None
