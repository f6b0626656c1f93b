"""The agent: a loop over OpenAI's client. Training needs no change of it but the client's base URL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from art_examples.plain_openai.shop import DESCRIPTIONS, look_up
from openai import AsyncOpenAI

SYSTEM = "Answer questions about the shop. Call the right tool, then answer with what it says."
MAX_TURNS = 3
"""Maximum number of requests for a question."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
        },
    }
    for name, description in DESCRIPTIONS.items()
]


async def answer(
    question: str, client: AsyncOpenAI, model: str, shown: Sequence[dict[str, Any]] = (), **options: Any
) -> str:
    """Answers a question about the shop.

    Args:
        question: The question.
        client: Asks any server with OpenAI's API.
        model: Name of the model there.
        shown: Messages to show between the system message and the question.
        **options: Options of each request, such as `max_tokens`.
    """
    messages = [{"role": "system", "content": SYSTEM}, *shown, {"role": "user", "content": question}]
    text = ""
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(model=model, messages=messages, tools=TOOLS, **options)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        text = message.content or ""
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = use(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return text


def use(tool: str, arguments: str) -> str:
    """What a tool says. A call that is wrong gets an answer that says so.

    Args:
        tool: Name of the tool, as the model wrote it.
        arguments: JSON, as the model wrote it.
    """
    if tool not in DESCRIPTIONS:
        return f"there is no tool {tool}"
    try:
        thing = json.loads(arguments)["thing"]
    except (ValueError, KeyError, TypeError):
        return "give the thing"
    return look_up(tool, str(thing))
