"""Prompts a request with the tokens of its conversation's earlier turn, where that can be proven safe."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from trainer_server.engines.base import Engine, RequestRefused
from trainer_server.gateway.answer import Answer
from trainer_server.gateway.chat_request import ChatRequest
from trainer_server.gateway.splice.engine_template import EngineTemplate
from trainer_server.gateway.splice.messages import only_text, thoughts
from trainer_server.gateway.splice.proof import splice
from trainer_server.gateway.splice.turns import Conversation, Match, Tokens, Turn, Turns
from trainer_server.wire import Completion, Continuation

log = logging.getLogger("trainer_server")

Messages = Sequence[Mapping[str, Any]]

_RENDERED = ("messages", "tools", "chat_template_kwargs")
_ANSWERED = ("stop", "tool_calls")
"""Finish reasons of answers that may have ended their turn."""


class SpliceMode(StrEnum):
    """Which prompts are spliced."""

    off = "off"
    """None."""
    exact = "exact"
    """Prompts that say the same messages as the rendered ones, thoughts included."""
    thoughts = "thoughts"
    """Also prompts that keep thoughts of earlier turns, which the template or the client leaves out."""


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

    def prompt(self, chat: ChatRequest, rollout: str | None) -> Prompt:
        """The prompt of a request.

        Args:
            chat: The request.
            rollout: The rollout that asks; None: the request belongs to none.
        """
        if chat.prompt is not None:
            return Prompt(self, chat, None, [])
        conversation = Conversation(chat.body["messages"], rollout)
        return Prompt(self, chat, conversation, self._turns.matches(conversation))

    def template(self, engine: Engine) -> EngineTemplate:
        """An engine's chat template and tokenizer."""
        return self._templates.setdefault(engine.url, EngineTemplate(engine))

    def able(self, engine: Engine) -> bool:
        """Whether an engine can take spliced prompts, as far as is known."""
        return engine.url not in self._unable

    def unable(self, engine_url: str, why: str) -> None:
        """Notes that an engine cannot take spliced prompts, and logs it once."""
        if engine_url not in self._unable:
            self._unable.add(engine_url)
            log.warning(
                "%s %s: its prompts are rendered anew in each turn, and turns of a rollout may share fewer tokens. "
                "vLLM 0.32 takes tokens; `serve --splice off` does not try",
                engine_url,
                why,
            )

    def remember(self, conversation: Conversation, turn: Turn) -> None:
        """Remembers a turn for the prompts that will continue it."""
        self._turns.add(conversation, turn)

    def forget(self, rollouts: Collection[str]) -> None:
        """Forgets the turns of rollouts that have ended."""
        self._turns.forget(rollouts)

    def drop(self, completions: Collection[str]) -> None:
        """Forgets the turns of completions that were deleted."""
        self._turns.drop(completions)


class Prompt:
    """How one request is prompted.

    Args:
        splicer: Of the gateway.
        chat: The request.
        conversation: Its messages; None: it has a prompt of its own.
        matches: The turns that it continues, the longest first.

    Attributes:
        continues: See Completion.continues.
        continuation: See Completion.continuation. It is final once the request is answered.
    """

    def __init__(
        self, splicer: Splicer, chat: ChatRequest, conversation: Conversation | None, matches: Sequence[Match]
    ) -> None:
        self._splicer, self._chat, self._conversation, self._matches = splicer, chat, conversation, matches
        self._rendered: Tokens | None = None
        self._sent: Tokens | None = None
        self.continues = matches[0].turn.id if matches else None
        self.continuation: Continuation | None = Continuation.off if matches else None

    async def tokens(self, engine: Engine, request: Mapping[str, Any]) -> list[int] | None:
        """The tokens that an engine is to be prompted with; None: what it renders.

        Args:
            engine: The engine.
            request: The request to it.

        Raises:
            EngineLost: The engine went away.
        """
        self._sent = self._rendered = None
        if self._conversation is None or not self._matches or self._splicer.mode == SpliceMode.off:
            return None
        messages = self._conversation.messages
        spliced = self._unavailable_reason(engine, messages) or await self._splice(engine, request, messages)
        if isinstance(spliced, Continuation):
            self.continuation = spliced
            return None
        self._sent, self.continuation = spliced, Continuation.spliced
        return list(spliced)

    def refused(self) -> bool:
        """The engine refused the request. Returns whether its prompt was spliced; it may then accept the rendered one,
        and is to be asked again without these tokens."""
        if self._sent is None:
            return False
        self._sent, self.continuation = None, Continuation.refused
        return True

    def check(self, reported_tokens: Sequence[int], engine_url: str) -> str | None:
        """Compares the prompt that an engine reports with the one that it was sent.

        Args:
            reported_tokens: What the engine says it was prompted with.
            engine_url: The engine.

        Returns:
            Why the answer must not be trained; None: the reported prompt is the one that was answered.
        """
        if self._sent is None or array("I", reported_tokens) == self._sent:
            return None
        self.continuation = Continuation.unsupported
        if array("I", reported_tokens) == self._rendered:
            self._splicer.unable(engine_url, "does not take tokens as a prompt")
            return None
        return f"the engine was prompted with {len(self._sent)} tokens, and reports {len(reported_tokens)} others"

    def remember_turn(self, completion: Completion, answer: Answer) -> None:
        """Remembers the turn for prompts that will continue it.

        Args:
            completion: The row of the ledger.
            answer: The choice that it has.
        """
        if self._conversation is None or completion.message is None or completion.untrainable:
            return
        if self._splicer.mode == SpliceMode.off:  # only the completion's id is needed
            empty: Tokens = array("I")
            turn = Turn(completion.id, empty, empty, empty, completion.message)
        else:
            prompt = array("I", completion.prompt_token_ids)
            rendered = prompt if self._sent is None or self._rendered is None else self._rendered
            unavailable_reason = self._unfit(completion, answer)
            sampled = array("I", completion.token_ids)
            single = bool(completion.message.get("tool_calls")) and not self._chat.options.parallel_tool_calls
            turn = Turn(completion.id, prompt, sampled, rendered, completion.message, unavailable_reason, single)
        self._splicer.remember(self._conversation, turn)

    def _unavailable_reason(self, engine: Engine, messages: Messages) -> Continuation | None:
        """Why the prompt cannot be spliced, whatever the template renders."""
        asked = self._chat.options
        if not self._splicer.able(engine):
            return Continuation.unsupported
        if not only_text(messages):
            return Continuation.media
        if asked.continue_final_message or not asked.add_generation_prompt:
            return Continuation.prefill
        if self._splicer.mode == SpliceMode.exact and all(_lost(match, messages) for match in self._matches):
            return Continuation.thoughts
        return None

    async def _splice(self, engine: Engine, request: Mapping[str, Any], messages: Messages) -> Tokens | Continuation:
        """The spliced prompt of the longest turn that has one; else why the longest turn has none."""
        body = {name: request[name] for name in _RENDERED if request.get(name)}
        if effort := request.get("reasoning_effort"):
            named = body.get("chat_template_kwargs", {})
            body["chat_template_kwargs"] = {"enable_thinking": effort != "none", **named, "reasoning_effort": effort}
        try:
            self._rendered = array("I", await engine.render(body, generation=True))
            return await self._longest(engine, self._rendered, messages)
        except RequestRefused as refusal:
            if refusal.status == 404:
                self._splicer.unable(engine.url, "cannot render a prompt without answering it")
            return Continuation.unsupported

    async def _longest(self, engine: Engine, rendered_prompt: Tokens, messages: Messages) -> Tokens | Continuation:
        keep_thoughts, template = self._splicer.mode == SpliceMode.thoughts, self._splicer.template(engine)
        reasons: list[Continuation] = []
        for match in self._matches:
            spliced = await splice(match, messages, rendered_prompt, template, keep_thoughts=keep_thoughts)
            if not isinstance(spliced, Continuation):
                return spliced
            reasons.append(spliced)
            if spliced == Continuation.extended:
                break
        return reasons[0]

    def _unfit(self, completion: Completion, answer: Answer) -> Continuation | None:
        """Why no prompt can have what was sampled: the request made it another text than the template's form of it."""
        asked = self._chat.options
        ended = completion.finish_reason in _ANSWERED and not completion.truncated
        if not ended or isinstance(answer.stop_reason, str) or asked.stop_token_ids or asked.ignore_eos:
            return Continuation.cut
        return Continuation.forced if asked.forced_tool else None


def _lost(match: Match, messages: Messages) -> bool:
    """Whether the client has left thoughts of an answer out, so that no template can render them."""
    return not set(thoughts(match.turn.message)) <= set(thoughts(messages[match.length - 1]))
