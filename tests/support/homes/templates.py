"""Chat templates in the style of three model families, and a tokenizer of characters with their special tokens.

Each template writes every message by `write`; `rendered(…, written={2: text})` puts what a policy wrote in place of
what the template would write for the answer at index 2.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_server.gateway.splice.turns import thoughts

SPECIAL = (
    *("<|im_start|>", "<|im_end|>"),
    *("<|header|>", "<|end_header|>", "<|eot|>"),
    *("<|User|>", "<|Assistant|>", "<|eos|>"),
)
_FIRST = 0x110000
_PIECES = re.compile("|".join([*map(re.escape, SPECIAL), "\n\n", "."]), re.DOTALL)
_PARAGRAPH = _FIRST + len(SPECIAL)
"""Two newlines in a row are one token: its boundary depends on what stands beside it."""

Message = Mapping[str, Any]


def encode(text: str) -> array[int]:
    return array("I", (_FIRST + SPECIAL.index(p) if p in SPECIAL else _PARAGRAPH if p == "\n\n" else ord(p)
                       for p in _PIECES.findall(text)))  # fmt: skip


def decode(tokens: Sequence[int]) -> str:
    return "".join("\n\n" if t == _PARAGRAPH else chr(t) if t < _FIRST else SPECIAL[t - _FIRST] for t in tokens)


@dataclass(frozen=True)
class Template:
    """`write(message, at, messages)` is a message with what opens and closes it; `opening` is the generation prompt."""

    write: Callable[[Message, int, Sequence[Message]], str]
    opening: str
    end: str

    def rendered(self, messages: Sequence[Message], written: Mapping[int, str] | None = None) -> str:
        """written: by index of an answer: what the policy wrote, up to its end, in place of what the template writes.
        It follows a generation prompt."""
        text = ""
        for at, message in enumerate(messages):
            if written and at in written:
                text += self.opening + written[at] + self.end + ("\n" if self.end == "<|im_end|>" else "")
            else:
                text += self.write(message, at, messages)
        return text + self.opening

    async def text_of(self, tokens: Sequence[int]) -> str:
        return decode(tokens)

    async def ends(self, answer: Message, token: int) -> bool:
        messages: list[Message] = [{"role": "user", "content": "?"}, answer]
        return self.rendered(messages).removesuffix(self.opening).rstrip().endswith(decode([token]))


def _arguments(call: Message) -> str:
    return json.dumps(json.loads(call["function"]["arguments"]), ensure_ascii=False)


def _hermes(message: Message) -> str:
    calls = [
        f'<tool_call>\n{{"name": "{call["function"]["name"]}", "arguments": {_arguments(call)}}}\n</tool_call>'
        for call in message.get("tool_calls") or ()
    ]
    return "\n".join(filter(None, [message.get("content") or "", *calls]))


def _chatml(message: Message, at: int, messages: Sequence[Message]) -> str:
    return f"<|im_start|>{message['role']}\n{_hermes(message)}<|im_end|>\n"


def _thinking(message: Message, at: int, messages: Sequence[Message]) -> str:
    """Like Qwen3: thoughts of answers before the last question are left out."""
    question = max((i for i, one in enumerate(messages) if one["role"] == "user"), default=-1)
    known = thoughts(message) if message["role"] == "assistant" and at > question else []
    thought = f"<think>\n{known[0]}\n</think>\n\n" if known else ""
    return f"<|im_start|>{message['role']}\n{thought}{_hermes(message)}<|im_end|>\n"


def _llama(message: Message, at: int, messages: Sequence[Message]) -> str:
    """Like Llama 3.1: results of tools as JSON, texts stripped, an answer with a tool call has nothing else."""
    calls = message.get("tool_calls")
    if calls:
        (call,) = calls
        body = f'{{"name": "{call["function"]["name"]}", "parameters": {_arguments(call)}}}'
    else:
        body = (message.get("content") or "").strip()
    if message["role"] == "tool":
        body = json.dumps(message["content"], ensure_ascii=False)
    return f"<|header|>{message['role']}<|end_header|>\n\n{body}<|eot|>"


def _deepseek(message: Message, at: int, messages: Sequence[Message]) -> str:
    """Like DeepSeek: only answers end with a token of their own."""
    if message["role"] == "assistant":
        return f"<|Assistant|>{_hermes(message)}<|eos|>"
    return f"<|User|>{message['content']}" if message["role"] == "user" else f"\n[{message['content']}]"


HERMES = Template(_chatml, "<|im_start|>assistant\n", "<|im_end|>")
THINKING = Template(_thinking, "<|im_start|>assistant\n", "<|im_end|>")
LLAMA = Template(_llama, "<|header|>assistant<|end_header|>\n\n", "<|eot|>")
DEEPSEEK = Template(_deepseek, "<|Assistant|>", "<|eos|>")
