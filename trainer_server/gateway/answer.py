"""One choice of a chat completion: collects it, from the chunks of a stream or whole, and makes it readable for
clients."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainer_server.common.routed_experts import pack_experts
from trainer_server.engines.base import EngineClient
from trainer_server.engines.model_files import ModelFiles
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.parser import ChatRequest
from trainer_server.wire import EngineError
from trainer_server.wire.json_size import off_loop
from trainer_server.wire.tool_arguments import arguments_text


@dataclass(slots=True)
class Answer:
    """One choice of a chat completion, as far as it was received."""

    prompt_token_ids: list[int] = field(default_factory=list)
    """Token ids of the prompt."""
    token_ids: list[int] = field(default_factory=list)
    """Sampled token ids."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of the sampled tokens."""
    finish_reason: str | None = None
    """Why the answer ended; None until it has ended."""
    stop_reason: int | str | None = None
    """What ended it, where that is not the model's own end of a turn: a text or a token of the request, for example."""
    sent_experts: object = None
    """The experts that a mixture chose for the tokens, as the engine sent them; None: it sent none, as in streams."""
    routed_experts: str | None = None
    """The same as the ledger has them."""
    message: dict[str, Any] | None = None
    """The assistant message, the same of a stream and of a whole answer: content, thoughts and tool calls; None until
    the first part of it was received."""

    def take(self, choice: dict[str, Any], prompt_token_ids: list[int] | None) -> None:
        """Adds a choice of an answer, or of a chunk.

        Args:
            choice: The choice, as the engine sent it.
            prompt_token_ids: Token ids of the prompt; None: this chunk does not have them.
        """
        if prompt_token_ids:
            self.prompt_token_ids = prompt_token_ids
        self.token_ids += choice.get("token_ids") or []
        self.logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or []]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.stop_reason = choice.get("stop_reason") or self.stop_reason
        self.sent_experts = choice.pop("routed_experts", None) or self.sent_experts  # large, and no client asks for it
        if (part := choice.get("delta") or choice.get("message")) is not None:
            message = merge_delta(self.message or {"role": "assistant", "content": None}, part)
            message["content"] = message["content"] or (None if message.get("tool_calls") else "")
            self.message = message

    async def pack_experts(self) -> None:
        """Makes of the experts that the engine sent what the ledger has of them.

        Raises:
            ValueError: They are not those of the answer's tokens.
        """
        if self.sent_experts is not None:
            tokens, size = len(self.prompt_token_ids) + len(self.token_ids), len(str(self.sent_experts))
            self.routed_experts = await off_loop(size, partial(pack_experts, self.sent_experts, tokens))


def check_exact(answers: Sequence[Answer]) -> None:
    """Checks that answers are whole, and that the engine sent tokens of prompts and sampled tokens at all.

    Raises:
        APIError: 503, the engine broke an answer off; 502, it sent no tokens.
    """
    if any(answer.finish_reason == "abort" for answer in answers):
        raise APIError(503, "the engine broke the answer off; ask again", code="engine_lost", retry_after=2)
    if not all(answer.prompt_token_ids and answer.token_ids for answer in answers):
        raise APIError(
            502,
            "the engine answered without exact tokens; it must be vLLM that honours return_token_ids",
            code="missing_tokens",
        )


def why_incomplete(answers: Sequence[Answer], token_count: object) -> str | None:
    """Why the tokens of answers must not be trained: not all that were sampled were received.

    Some versions of vLLM leave chunks of streamed tool calls out, and the ids and log-probabilities in them. What is
    left looks whole; only the number of sampled tokens shows it.

    Args:
        answers: All choices of one request.
        token_count: The number of sampled tokens of all choices, from the engine's usage; None: the usage lacks it.

    Returns:
        The reason; None if all tokens are there.
    """
    ids = sum(len(answer.token_ids) for answer in answers)
    logprobs = sum(len(answer.logprobs) for answer in answers)
    if token_count is None:
        return f"the engine sent {ids} token ids, and no usage that says how many tokens were sampled"
    if ids != token_count:
        return f"the engine sampled {token_count} tokens, and sent {ids} token ids"
    if any(len(answer.token_ids) != len(answer.logprobs) for answer in answers):
        return f"the engine sent {ids} token ids, and {logprobs} log-probabilities"
    return None


def merge_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a streamed delta, or a whole message, to a message, in place. Texts are concatenated; tool calls are merged
    by index, and those of a whole message, which have none, by their order."""
    for key in ("content", "reasoning", "reasoning_content"):
        if delta.get(key):
            message[key] = (message.get(key) or "") + delta[key]
    for at, part in enumerate(delta.get("tool_calls") or []):
        calls, index = message.setdefault("tool_calls", []), part.get("index", at)
        while len(calls) <= index:
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[index], part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
    return message


@dataclass(frozen=True, slots=True)
class ChoiceWriter:
    """Makes the choices of an engine those that clients get, in place.

    Args:
        chat: The client's request.
        engine: Decodes tokens; None: no engine can be asked any more.
        model: Directory of the base model.
    """

    chat: ChatRequest
    engine: EngineClient | None
    model: str

    async def make_readable(self, choice: dict[str, Any]) -> None:
        """Makes the tool calls of a whole choice ones that clients can read: those without arguments get an empty
        object, and those whose arguments are no object become text."""
        for call in choice["message"].get("tool_calls") or ():
            call["function"]["arguments"] = arguments_text(call["function"].get("arguments"))
        if unusable_calls(choice):
            as_text(choice, await self._sampled_text(choice))

    async def finish(self, choice: dict[str, Any], answer: Answer) -> None:
        """Puts the tool calls of a stream into its last choice, as they are in a whole answer.

        Until then they are held back: what has begun as a call may turn out to be text.
        """
        if answer.message is None or not answer.message.get("tool_calls"):
            return
        content, delta = answer.message["content"] or "", choice["delta"]
        whole = {**choice, "message": dict(answer.message), "token_ids": answer.token_ids}
        await self.make_readable(whole)
        if not (whole["message"]["content"] or "").startswith(content):  # a parser has changed what was sent already
            whole = {**choice, "message": dict(answer.message)}
            as_text(whole, None)
        if text := (whole["message"]["content"] or "").removeprefix(content):
            delta["content"] = (delta.get("content") or "") + text
        if calls := whole["message"]["tool_calls"]:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        choice["finish_reason"] = answer.finish_reason = whole["finish_reason"]
        answer.message = None
        answer.take({"message": whole["message"]}, None)

    def clean(self, choice: dict[str, Any]) -> None:
        """Removes the fields that the client did not ask for."""
        if not self.chat.options.return_token_ids:
            choice.pop("token_ids", None)
        if not self.chat.options.logprobs and "logprobs" in choice:
            choice["logprobs"] = None
        if not self.chat.options.include_reasoning:  # the engine must not know: it would leave tokens out too
            part = "delta" if self.chat.stream else "message"
            choice[part] = {name: value for name, value in choice[part].items() if not name.startswith("reasoning")}

    async def _sampled_text(self, choice: Mapping[str, Any]) -> str | None:
        """What the model wrote, without the token that ends an answer; None: it cannot be decoded any more."""
        tokens = list(choice.get("token_ids") or ())
        if tokens and tokens[-1] in ModelFiles(Path(self.model)).end_tokens:
            tokens.pop()
        if not tokens or self.engine is None:
            return None
        try:
            return await self.engine.detokenize(tokens)
        except EngineError:
            return None


def unusable_calls(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of a choice whose arguments are JSON but no object, or nested too deeply to be read.

    A policy writes such calls while it explores. Clients raise an error for them or lose them, and so would the run.
    """
    calls = choice["message"].get("tool_calls") or ()
    return [call for call in calls if not _is_object(call["function"]["arguments"])]


def as_text(choice: dict[str, Any], sampled_text: str | None) -> None:
    """Turns the unusable tool calls of a choice back into text, in place.

    Args:
        choice: A choice with `unusable_calls`.
        sampled_text: What the model wrote, without the token that ends an answer; None: not known. It becomes the
            content where all calls are unusable. Otherwise each unusable call is written as JSON.
    """
    message, bad = choice["message"], unusable_calls(choice)
    good = [call for call in message["tool_calls"] if call not in bad]
    if sampled_text is not None and not good:
        message["content"] = _without_thought(
            sampled_text, message.get("reasoning") or message.get("reasoning_content")
        )
    else:
        texts = [message.get("content"), *map(call_text, bad)]
        message["content"] = "\n".join(text for text in texts if text)
    message["tool_calls"] = good
    if not good:
        choice["finish_reason"] = "stop" if choice["finish_reason"] == "tool_calls" else choice["finish_reason"]


def _without_thought(sampled_text: str, reasoning: str | None) -> str:
    """A text without the thought that a parser found at its beginning, and without the mark that ends the thought."""
    thought = (reasoning or "").strip()
    _, separator, rest = sampled_text.partition(thought) if thought else ("", "", "")
    return _END_OF_THOUGHT.sub("", rest) if separator else sampled_text


_END_OF_THOUGHT = re.compile(r"^\s*(</[^<>]*>|\[/[^\[\]]*\]|<channel\|>)?\s*")
"""The mark that ends a thought in the formats of vLLM's parsers, such as `</think>`, and the space around it."""


def call_text(call: Mapping[str, Any]) -> str:
    """A tool call as text."""
    function = call["function"]
    return f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}'


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except RecursionError:  # nested so deeply that clients fail on it
        return False
    except ValueError:
        return True  # clients handle arguments that are no JSON
