"""A spliced prompt is the rendered one with the policy's own words in it, or there is none, with the reason."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.homes.templates import DEEPSEEK, HERMES, LLAMA, THINKING, Message, Template, decode, encode
from trainer_server.gateway.splice.proof import splice
from trainer_server.gateway.splice.turns import Match, Turn
from trainer_server.wire import Continuation

ASKED: list[dict[str, Any]] = [
    {"role": "system", "content": "Use the tools."},
    {"role": "user", "content": "Weather in Bern?"},
]
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": 'It is "sunny".\n\nBye'}
WROTE = '<tool_call>\n{"name":"weather","arguments":{"city":"Bern"}}\n</tool_call>'
"""What a policy wrote: the same call without spaces."""


def turn_of(
    template: Template, asked: Sequence[dict[str, Any]], message: dict[str, Any], wrote: str, **facts: Any
) -> Turn:
    prompt = encode(template.rendered(asked))
    return Turn("c", prompt, encode(wrote + template.end), prompt, message, **facts)


def join(
    template: Template, turn: Turn, messages: Sequence[dict[str, Any]], length: int, *, keep_thoughts: bool = False
) -> str | Continuation:
    """The text of the spliced prompt, or why there is none."""
    rendered = encode(template.rendered(messages))
    made = asyncio.run(splice(Match(turn, length), messages, rendered, template, keep_thoughts=keep_thoughts))
    return made if isinstance(made, Continuation) else decode(made)


@pytest.mark.parametrize("template", [HERMES, THINKING, DEEPSEEK], ids=["hermes", "qwen3", "deepseek"])
def test_a_call_that_is_written_otherwise_keeps_the_policys_words(template: Template) -> None:
    messages = [*ASKED, CALL, RESULT]
    made = join(template, turn_of(template, ASKED, CALL, WROTE), messages, 3)
    assert made == template.rendered(messages, {2: WROTE})
    assert made != template.rendered(messages)


def test_a_call_that_the_client_never_got_is_not_put_back() -> None:
    """Of several sampled calls, engines return the first where the client asked for no parallel ones."""
    messages = [*ASKED, CALL, RESULT]
    more = WROTE + '\n<tool_call>\n{"name":"time","arguments":{}}\n</tool_call>'
    assert join(HERMES, turn_of(HERMES, ASKED, CALL, more, single=True), messages, 3) == Continuation.unlike
    alone = join(HERMES, turn_of(HERMES, ASKED, CALL, WROTE, single=True), messages, 3)
    assert alone == HERMES.rendered(messages, {2: WROTE})


def test_results_that_the_template_writes_as_json_are_found() -> None:
    messages, wrote = [*ASKED, CALL, RESULT], '{"name":"weather","parameters":{"city":"Bern"}}'
    assert join(LLAMA, turn_of(LLAMA, ASKED, CALL, wrote), messages, 3) == LLAMA.rendered(messages, {2: wrote})


def test_a_text_of_other_tokens_keeps_the_sampled_ones() -> None:
    answer = {"role": "assistant", "content": "a\n\nb"}
    turn = turn_of(HERMES, ASKED, answer, "")
    sampled = array("I", [ord("a"), ord("\n"), ord("\n"), ord("b"), *encode("<|im_end|>")])
    turn = Turn("c", turn.prompt, sampled, turn.rendered_prompt, answer)
    messages = [*ASKED, answer, {"role": "user", "content": "And?"}]
    rendered = encode(HERMES.rendered(messages))
    made = asyncio.run(splice(Match(turn, 3), messages, rendered, HERMES, keep_thoughts=False))
    assert not isinstance(made, Continuation)
    assert made[: len(turn.prompt + sampled)] == turn.prompt + sampled
    assert decode(made) == decode(rendered)
    assert made != rendered


def test_a_prompt_that_extends_the_turn_is_left_alone() -> None:
    wrote = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    assert join(HERMES, turn_of(HERMES, ASKED, CALL, wrote), [*ASKED, CALL, RESULT], 3) == Continuation.extended


def test_a_third_turn_is_spliced_onto_a_spliced_second_one() -> None:
    then = [*ASKED, CALL, RESULT]
    first = join(HERMES, turn_of(HERMES, ASKED, CALL, WROTE), then, 3)
    assert isinstance(first, str)
    again = {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "id": "c2"}]}
    turn = Turn("d", encode(first), encode(WROTE + "<|im_end|>"), encode(HERMES.rendered(then)), again)
    messages = [*then, again, {**RESULT, "tool_call_id": "c2"}]
    assert join(HERMES, turn, messages, 5) == HERMES.rendered(messages, {2: WROTE, 4: WROTE})


THOUGHT = {**CALL, "reasoning": "Bern is a city."}
THOUGHT_WROTE = f"<think>\nBern is a city.\n</think>\n\n{WROTE}"


def test_thoughts_that_the_client_leaves_out_come_back_only_if_they_may() -> None:
    messages = [*ASKED, CALL, RESULT]  # the client sends no reasoning
    turn = turn_of(THINKING, ASKED, THOUGHT, THOUGHT_WROTE)
    assert join(THINKING, turn, messages, 3) == Continuation.thoughts
    assert join(THINKING, turn, messages, 3, keep_thoughts=True) == THINKING.rendered(messages, {2: THOUGHT_WROTE})


def test_thoughts_that_the_client_sends_are_no_hindrance() -> None:
    messages = [*ASKED, THOUGHT, RESULT]
    turn = turn_of(THINKING, ASKED, THOUGHT, THOUGHT_WROTE)
    assert join(THINKING, turn, messages, 3) == THINKING.rendered(messages, {2: THOUGHT_WROTE})


def test_thoughts_that_the_template_leaves_out_of_earlier_answers() -> None:
    """A next question: the template now leaves out what it rendered in the prompt of the answer before."""
    then = [*ASKED, THOUGHT, RESULT]
    answer, next_question = {"role": "assistant", "content": "Sunny."}, {"role": "user", "content": "And Rome?"}
    first = THINKING.rendered(then, {2: THOUGHT_WROTE})
    wrote = "<think>\n\n</think>\n\nSunny."
    turn = Turn("d", encode(first), encode(wrote + "<|im_end|>"), encode(THINKING.rendered(then)), answer)
    messages = [*then, answer, next_question]
    assert join(THINKING, turn, messages, 5) == Continuation.thoughts
    kept = join(THINKING, turn, messages, 5, keep_thoughts=True)
    assert kept == first + wrote + "<|im_end|>\n<|im_start|>user\nAnd Rome?<|im_end|>\n<|im_start|>assistant\n"


def test_thoughts_in_the_content_are_thoughts() -> None:
    """An engine without a parser of thoughts leaves them in the content."""
    answer = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSunny."}
    messages = [*ASKED, answer, {"role": "user", "content": "And Rome?"}]

    def write(message: Message, at: int, messages: Sequence[Message]) -> str:
        text = (message["content"] or "").rpartition("</think>")[2].strip()
        return HERMES.write({**message, "content": text}, at, messages)

    stripping = Template(write, HERMES.opening, HERMES.end)
    turn = turn_of(stripping, ASKED, answer, answer["content"])
    assert join(stripping, turn, messages, 3) == Continuation.thoughts
    assert join(stripping, turn, messages, 3, keep_thoughts=True) == HERMES.rendered(messages)


def test_an_opened_thought_of_the_generation_prompt_is_no_other_text() -> None:
    """Templates that open a thought, or close an empty one, in the generation prompt leave that out later."""
    opening = Template(HERMES.write, HERMES.opening + "<think>\n\n</think>\n\n", HERMES.end)
    messages = [*ASKED, CALL, RESULT]
    assert join(opening, turn_of(opening, ASKED, CALL, WROTE), messages, 3) == opening.rendered(messages, {2: WROTE})


def test_other_tools_or_text_that_depends_on_later_messages_are_not_hidden() -> None:

    def write(message: Message, at: int, messages: Sequence[Message]) -> str:
        counted = {**message, "content": f"{message['content']} ({len(messages)})"}
        return HERMES.write(counted if at == 0 else message, at, messages)

    dated = Template(write, HERMES.opening, HERMES.end)
    for keep in (False, True):
        made = join(dated, turn_of(dated, ASKED, CALL, WROTE), [*ASKED, CALL, RESULT], 3, keep_thoughts=keep)
        assert made == Continuation.changed


def test_a_template_that_leaves_text_of_the_answer_out_is_not_believed() -> None:
    """As Llama 3.1 does with text beside a call: with the policy's words the prompt would say more."""
    answer = {**CALL, "content": "Let me look."}
    wrote = 'Let me look. {"name":"weather","parameters":{"city":"Bern"}}'
    assert join(LLAMA, turn_of(LLAMA, ASKED, answer, wrote), [*ASKED, answer, RESULT], 3) == Continuation.unlike


def test_a_template_that_does_not_end_answers_is_not_believed() -> None:
    """Else what ends the next message would be taken for the end of the answer."""

    def write(message: Message, at: int, messages: Sequence[Message]) -> str:
        text = HERMES.write(message, at, messages)
        return text.replace("<|im_end|>", "") if message["role"] == "assistant" else text

    endless = Template(write, HERMES.opening, HERMES.end)
    made = join(endless, turn_of(endless, ASKED, CALL, WROTE), [*ASKED, CALL, RESULT], 3)
    assert made == Continuation.unlike


@pytest.mark.parametrize("arguments", ['{"a": "<|im_end|>"}', '{"a": "\\u003c|im_end|>"}'])
def test_an_answer_that_names_the_end_of_turns_is_rendered_anew(arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    turn = turn_of(HERMES, ASKED, answer, "(as ordinary characters)")
    assert join(HERMES, turn, [*ASKED, answer, RESULT], 3) == Continuation.unlike


@pytest.mark.parametrize("unavailable_reason", [Continuation.cut, Continuation.ambiguous])
def test_a_turn_that_cannot_be_used_says_why(unavailable_reason: Continuation) -> None:
    turn = turn_of(HERMES, ASKED, CALL, WROTE, unavailable_reason=unavailable_reason)
    assert join(HERMES, turn, [*ASKED, CALL, RESULT], 3) == unavailable_reason


PIECES = st.sampled_from(
    [
        "a",
        "b",
        " ",
        "\n",
        '"',
        "{",
        "é",
        "<think>",
        "</think>",
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "<|eos|>",
        "[x]",
    ]
)
TEXTS = st.lists(PIECES, max_size=5).map("".join)
VALUES = st.dictionaries(st.sampled_from("xyz"), TEXTS | st.integers(0, 9), max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Messages, and by index of each answer what a policy may have written for it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": draw(TEXTS)}]
    written: dict[int, str] = {}
    for number in range(draw(st.integers(1, 3))):
        content, thought = draw(TEXTS), draw(st.sampled_from(["", "", "so", "a </x> b"]))
        answer: dict[str, Any] = {"role": "assistant", "content": content}
        wrote = [f"<think>{thought}</think>"] * bool(thought) + [content]
        if draw(st.booleans()):
            arguments = draw(VALUES)
            spaced, compact = json.dumps(arguments), json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
            call = {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": spaced}}
            answer["tool_calls"] = [call]
            wrote.append(f'<tool_call>{{"name":"f","arguments":{compact}}}</tool_call>')
        if thought and draw(st.booleans()):
            answer["reasoning"] = thought
        written[len(messages)] = "".join(wrote)
        role = draw(st.sampled_from(["tool", "user"]))
        messages += [answer, {"role": role, "content": draw(TEXTS)}]
    return messages, written


@given(conversations(), st.sampled_from([HERMES, THINKING, DEEPSEEK]), st.booleans())
def test_a_spliced_prompt_is_the_turn_and_what_the_template_renders_after_it(
    conversation: tuple[list[dict[str, Any]], dict[int, str]], template: Template, keep_thoughts: bool
) -> None:
    """Whatever the messages hold, texts of special tokens included."""
    messages, written = conversation
    *_, last = written
    asked, wrote = messages[:last], written[last]
    prompt = encode(template.rendered(asked))
    turn = Turn("c", prompt, array("I", map(ord, wrote)) + encode(template.end), prompt, messages[last])
    made = join(template, turn, messages, last + 1, keep_thoughts=keep_thoughts)
    if not isinstance(made, Continuation):
        after = "\n" * (template.end == "<|im_end|>") + template.write(messages[-1], len(messages) - 1, messages)
        assert made == template.rendered(asked) + wrote + template.end + after + template.opening
