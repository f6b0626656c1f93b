"""`prefix_drift`: which sampled tokens the next prompt of a conversation does not have."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.homes.ledger_rows import row
from trainer_server.wire import Completion, PrefixDrift, prefix_drift


def completion(one: str, prompt: list[int], sampled: list[int], **facts: Any) -> Completion:
    made = row(one, facts.pop("created", 0.0))
    return made.model_copy(update={"prompt_token_ids": prompt, "token_ids": sampled, **facts})


def test_tokens_count_up_to_the_first_difference() -> None:
    first = completion("a", [1, 2], [3, 4, 5])
    for prompt, missing in (([1, 2, 3, 4, 5, 6], 0), ([1, 2, 3, 9, 5, 6], 2), ([9, 2, 3, 4, 5], 3), ([1, 2, 3], 2)):
        drift = prefix_drift([first, completion("b", prompt, [7], created=1.0, continues="a")])
        assert drift == PrefixDrift(sampled=3, missing=missing)
        assert drift.share == missing / 3


def test_completions_that_nothing_continues_do_not_count() -> None:
    assert prefix_drift([]).share is None
    assert prefix_drift([completion("a", [1], [2]), completion("b", [1, 2, 3], [4])]).share is None
    assert prefix_drift([completion("b", [1], [4], continues="elsewhere")]).share is None


def test_the_earliest_of_several_branches_is_the_next_prompt() -> None:
    later = completion("late", [9], [7], created=2.0, continues="a")
    sooner = completion("soon", [1, 2, 3], [7], created=1.0, continues="a")
    assert prefix_drift([later, completion("a", [1], [2]), sooner]) == PrefixDrift(sampled=1, missing=0)


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=5)


@given(TOKENS, TOKENS, TOKENS)
def test_nothing_drifts_if_and_only_if_the_prompt_extends_the_turn(
    prompt: list[int], sampled: list[int], following: list[int]
) -> None:
    first = completion("a", prompt, sampled)
    extended = completion("b", prompt + sampled + following, [0], created=1.0, continues="a")
    assert prefix_drift([first, extended]).share == 0.0
    other = prefix_drift([first, completion("b", following, [0], created=1.0, continues="a")])
    assert 0 <= other.missing <= other.sampled == len(sampled)
    assert (other.missing == 0) == (following[: len(prompt + sampled)] == prompt + sampled)
