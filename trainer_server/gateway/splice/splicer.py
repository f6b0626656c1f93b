"""Stage 3, prompt: the tokens of the conversation's earlier turn, where that can be proven safe; else what the engine
renders."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from trainer_server.engines.base import EngineClient, RequestRefused
from trainer_server.gateway.answer import Answer
from trainer_server.gateway.parser import ChatRequest
from trainer_server.gateway.splice.proof import EngineTemplate, splice
from trainer_server.gateway.splice.turns import Conversation, Match, Tokens, Turn, Turns, only_text, thoughts
from trainer_server.wire import Completion, Continuation

log = logging.getLogger("trainer_server")

Messages = Sequence[Mapping[str, Any]]

_PROMPT_FIELDS = ("messages", "tools", "chat_template_kwargs")
_END_REASONS = ("stop", "tool_calls")
"""Finish reasons of answers that may have ended their turn."""


class SpliceMode(StrEnum):
    """Which prompts are spliced."""

    off = "off"
    """None."""
    exact = "exact"
    """Prompts that say the same messages as the rendered ones, thoughts included."""
    thoughts = "thoughts"
    """Also prompts that keep thoughts of earlier turns, which the template or the client leaves out."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """How a request is prompted: first with what is known of its conversation, then with tokens for an engine."""

    conversation: Conversation | None
    """The messages; None: the request has a prompt of its own."""
    matches: Sequence[Match] = ()
    """The turns that the conversation continues, the longest first."""
    continuation: Continuation | None = None
    """How it was made of the longest turn's tokens; None: it continues no turn."""
    tokens: Tokens | None = None
    """What the engine is sent; None: it renders the messages."""
    rendered_tokens: Tokens | None = None
    """What the engine renders; None: it is sent no tokens."""

    @property
    def continues(self) -> str | None:
        """Id of the completion that the conversation continues."""
        return self.matches[0].turn.id if self.matches else None


class Splicer:
    """Remembers the turns of conversations, and splices prompts with their tokens.

    Args:
        mode: Which prompts are spliced.
        turns: Where turns are remembered.
    """

    def __init__(self, mode: SpliceMode, turns: Turns | None = None) -> None:
        self.mode = mode
        self._turns = turns or Turns()
        self._templates: dict[str, EngineTemplate] = {}
        """By address of the engine."""
        self._unable: set[str] = set()
        """Engines that cannot take spliced prompts."""

    async def match(self, chat: ChatRequest, rollout: str | None) -> Prompt:
        """The prompt of a request before an engine is chosen: with the turns that its conversation continues.

        Args:
            chat: The request.
            rollout: Id of the request's rollout; None: the request belongs to none.
        """
        if chat.prompt is not None:
            return Prompt(None)
        conversation = Conversation(chat.body["messages"], rollout)
        matches = await self.find_turns(conversation)
        return Prompt(conversation, matches, Continuation.off if matches else None)

    async def find_turns(self, conversation: Conversation) -> Sequence[Match]:
        """The turns that a conversation continues, the longest first."""
        return self._turns.matches(conversation)

    async def add_turn(self, conversation: Conversation, turn: Turn) -> None:
        """Adds the turn of a conversation that was answered."""
        self._turns.add(conversation, turn)

    async def splice(
        self, prompt: Prompt, chat: ChatRequest, engine: EngineClient, request: Mapping[str, Any]
    ) -> Prompt:
        """The prompt for an engine.

        Args:
            prompt: The request's, perhaps with the tokens for another engine.
            chat: The request.
            engine: The engine.
            request: The request to it.

        Raises:
            EngineLost: The engine went away.
        """
        prompt = replace(prompt, tokens=None, rendered_tokens=None)
        if prompt.conversation is None or not prompt.matches or self.mode == SpliceMode.off:
            return prompt
        if reason := self._unavailable_reason(prompt, chat, engine):
            return replace(prompt, continuation=reason)
        body = {name: request[name] for name in _PROMPT_FIELDS if request.get(name)}
        if effort := request.get("reasoning_effort"):
            arguments = body.get("chat_template_kwargs", {})
            body["chat_template_kwargs"] = {
                "enable_thinking": effort != "none",
                **arguments,
                "reasoning_effort": effort,
            }
        try:
            rendered_tokens = array("I", await engine.render(body, generation=True))
            tokens = await self._longest(prompt.matches, prompt.conversation.messages, rendered_tokens, engine)
        except RequestRefused as refusal:
            if refusal.status == 404:
                self._mark_unable(engine.url, "cannot render a prompt without answering it")
            return replace(prompt, continuation=Continuation.unsupported)
        if isinstance(tokens, Continuation):
            return replace(prompt, continuation=tokens)
        return replace(prompt, continuation=Continuation.spliced, tokens=tokens, rendered_tokens=rendered_tokens)

    def verify(self, prompt: Prompt, reported_tokens: Sequence[int], engine_url: str) -> tuple[Prompt, str | None]:
        """Compares the prompt that an engine reports with the one that it was sent.

        Args:
            prompt: What the engine was sent.
            reported_tokens: Tokens of the prompt, as the engine reports them.
            engine_url: The engine.

        Returns:
            The prompt as it was answered; and why the answer must not be trained, or None.
        """
        if prompt.tokens is None or array("I", reported_tokens) == prompt.tokens:
            return prompt, None
        actual = replace(prompt, continuation=Continuation.unsupported)
        if array("I", reported_tokens) == prompt.rendered_tokens:
            self._mark_unable(engine_url, "does not take tokens as a prompt")
            return actual, None
        problem = f"the engine was prompted with {len(prompt.tokens)} tokens, and reports {len(reported_tokens)} others"
        return actual, problem

    async def remember(self, prompt: Prompt, chat: ChatRequest, completion: Completion, answer: Answer) -> None:
        """Remembers a turn for prompts that will continue it.

        Args:
            prompt: What was answered.
            chat: The request.
            completion: The row of the ledger.
            answer: The choice that it has.
        """
        if prompt.conversation is None or completion.message is None or completion.untrainable:
            return
        if self.mode == SpliceMode.off:  # only the completion's id is needed
            empty: Tokens = array("I")
            turn = Turn(completion.id, empty, empty, empty, completion.message)
        else:
            prompt_tokens, sampled_tokens = array("I", completion.prompt_token_ids), array("I", completion.token_ids)
            rendered_tokens = prompt_tokens if prompt.tokens is None else prompt.rendered_tokens or prompt_tokens
            single = bool(completion.message.get("tool_calls")) and not chat.options.parallel_tool_calls
            reason = _unfit(completion, chat, answer)
            turn = Turn(
                completion.id, prompt_tokens, sampled_tokens, rendered_tokens, completion.message, reason, single
            )
        await self.add_turn(prompt.conversation, turn)

    def forget(self, rollouts: Collection[str]) -> None:
        """Forgets the turns of rollouts that have ended."""
        self._turns.forget(rollouts)

    def drop(self, completions: Collection[str]) -> None:
        """Forgets the turns of completions that were deleted."""
        self._turns.drop(completions)

    def _mark_unable(self, engine_url: str, why: str) -> None:
        """Notes that an engine cannot take spliced prompts, and logs it once."""
        if engine_url not in self._unable:
            self._unable.add(engine_url)
            log.warning(
                "%s %s: its prompts are rendered anew in each turn, and turns of a rollout may share fewer tokens. "
                "vLLM 0.32 takes tokens; `serve --splice off` does not try",
                engine_url,
                why,
            )

    def _unavailable_reason(self, prompt: Prompt, chat: ChatRequest, engine: EngineClient) -> Continuation | None:
        """Why the prompt cannot be spliced, whatever the template renders."""
        messages: Messages = chat.body["messages"]
        if engine.url in self._unable:
            return Continuation.unsupported
        if not only_text(messages):
            return Continuation.media
        if chat.options.continue_final_message or not chat.options.add_generation_prompt:
            return Continuation.prefill
        if self.mode == SpliceMode.exact and all(_lost(match, messages) for match in prompt.matches):
            return Continuation.thoughts
        return None

    async def _longest(
        self, matches: Sequence[Match], messages: Messages, rendered_prompt: Tokens, engine: EngineClient
    ) -> Tokens | Continuation:
        """The spliced prompt of the longest turn that has one; else why the longest turn has none."""
        template = self._templates.setdefault(engine.url, EngineTemplate(engine))
        keep_thoughts = self.mode == SpliceMode.thoughts
        reasons: list[Continuation] = []
        for match in matches:
            result = await splice(match, messages, rendered_prompt, template, keep_thoughts=keep_thoughts)
            if not isinstance(result, Continuation):
                return result
            reasons.append(result)
            if result == Continuation.extended:
                break
        return reasons[0]


def _unfit(completion: Completion, chat: ChatRequest, answer: Answer) -> Continuation | None:
    """Why no prompt can have what was sampled: the request made it another text than the template's form of it."""
    options = chat.options
    is_whole = completion.finish_reason in _END_REASONS and not completion.truncated
    if not is_whole or isinstance(answer.stop_reason, str) or options.stop_token_ids or options.ignore_eos:
        return Continuation.cut
    return Continuation.forced if options.forced_tool else None


def _lost(match: Match, messages: Messages) -> bool:
    """Whether the client has left thoughts of an answer out, so that no template can render them."""
    return not set(thoughts(match.turn.message)) <= set(thoughts(messages[match.length - 1]))
