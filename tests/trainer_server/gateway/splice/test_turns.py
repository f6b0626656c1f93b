"""Turns are found by the messages that a request begins with, in its own rollout, the longest first."""

from __future__ import annotations

from array import array
from typing import Any

from trainer_server.gateway.splice.turns import Conversation, Turn, Turns
from trainer_server.wire import Continuation

ASKED = [{"role": "user", "content": "a"}]


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def turn(one: str, text: str, tokens: tuple[int, ...] = (1, 2)) -> Turn:
    prompt = array("I", [7])
    return Turn(one, prompt, array("I", tokens), prompt, said(text))


def found(turns: Turns, messages: list[dict[str, Any]], rollout: str | None = "r") -> list[tuple[str, int]]:
    return [(match.turn.id, match.length) for match in turns.matches(Conversation(messages, rollout))]


def test_the_longest_turn_comes_first() -> None:
    turns = Turns()
    turns.add(Conversation(ASKED, "r"), turn("one", "b"))
    longer = [*ASKED, said("b"), {"role": "user", "content": "c"}]
    turns.add(Conversation(longer, "r"), turn("two", "d"))
    next_question = [*longer, said("d"), {"role": "user", "content": "e"}]
    assert found(turns, next_question) == [("two", 4), ("one", 2)]
    assert found(turns, [*longer, said("other"), {"role": "user", "content": "e"}]) == [("one", 2)]
    assert found(turns, next_question[:4]) == [("one", 2)], "nothing follows the second answer"


def test_parallel_branches_find_their_own_turn() -> None:
    turns = Turns()
    for branch in "bcd":
        turns.add(Conversation(ASKED, "r"), turn(branch, branch))
    for branch in "bcd":
        assert found(turns, [*ASKED, said(branch), {"role": "user", "content": "?"}]) == [(branch, 2)]


def test_rollouts_do_not_see_one_another() -> None:
    turns = Turns()
    turns.add(Conversation(ASKED, "r"), turn("one", "b"))
    more = [*ASKED, said("b"), {"role": "user", "content": "c"}]
    assert found(turns, more, "other") == found(turns, more, None) == []
    turns.add(Conversation(ASKED, None), turn("two", "b"))
    assert found(turns, more, None) == [("two", 2)]
    assert found(turns, more) == [("one", 2)]


def test_one_message_of_other_tokens_is_ambiguous() -> None:
    turns, more = Turns(), [*ASKED, said("b"), {"role": "user", "content": "c"}]
    turns.add(Conversation(ASKED, "r"), turn("one", "b"))
    turns.add(Conversation(ASKED, "r"), turn("same", "b"))
    (match,) = turns.matches(Conversation(more, "r"))
    assert (match.turn.id, match.turn.unavailable_reason) == ("same", None)
    turns.add(Conversation(ASKED, "r"), turn("other", "b", (3, 4)))
    (match,) = turns.matches(Conversation(more, "r"))
    assert (match.turn.id, match.turn.unavailable_reason) == ("other", Continuation.ambiguous)


def test_turns_that_were_not_used_lately_are_forgotten() -> None:
    turns = Turns(most_tokens=3_100)
    for text in "bcd":
        turns.add(Conversation(ASKED, "r"), turn(text, text))
    assert found(turns, [*ASKED, said("b"), *ASKED]) == [("b", 2)]
    turns.add(Conversation(ASKED, "r"), turn("e", "e"))
    kept = [text for text in "bcde" if found(turns, [*ASKED, said(text), *ASKED])]
    assert kept == ["b", "d", "e"]
    turns.add(Conversation(ASKED, "r"), turn("huge", "f", tuple(range(5_000))))
    assert found(turns, [*ASKED, said("f"), *ASKED]) == []


def test_the_turns_of_a_rollout_that_has_ended_take_no_memory() -> None:
    turns, more = Turns(), [*ASKED, said("b"), {"role": "user", "content": "c"}]
    for rollout in ("r", "s", None):
        turns.add(Conversation(ASKED, rollout), turn(f"of {rollout}", "b"))
        turns.add(Conversation(ASKED, rollout), turn(f"of {rollout}", "b"))
    turns.forget({"r", "unknown"})
    assert found(turns, more, "r") == []
    assert found(turns, more, "s") == [("of s", 2)]
    assert found(turns, more, None) == [("of None", 2)]
    turns.forget({"r", "s"})
    assert turns._size == turn("one", "b").size
    assert not turns._of_rollout


def test_turns_that_were_pushed_out_are_not_looked_for_again() -> None:
    turns = Turns(most_tokens=2 * turn("one", "b").size)
    for rollout in "abcd":
        turns.add(Conversation(ASKED, rollout), turn(rollout, "b"))
    assert turns._of_rollout.keys() == {"c", "d"}
    turns.forget(set("abcd"))
    assert (turns._size, len(turns._turns)) == (0, 0)
