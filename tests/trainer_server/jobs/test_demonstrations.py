"""What of demonstrations reaches the trainer, and in which rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.training.worker import completion
from trainer_server.jobs.demonstrations import Collection, Demonstrations, Row, Turn, join
from trainer_server.wire import CompletionStatus, Sampling, SFTConfig, TrajectoryRef

ids = st.lists(st.integers(0, 2), min_size=1, max_size=6)
turns = st.lists(st.builds(Turn, ids, ids), max_size=6)


def test_a_conversation_whose_history_only_grows_is_one_row() -> None:
    assert join([Turn([1, 2], [3, 4]), Turn([1, 2, 3, 4, 5], [6])]) == [
        Row(ids=[1, 2, 3, 4, 5, 6], loss_spans=[(2, 4), (5, 6)])
    ]


def test_a_rewritten_history_has_a_row_of_its_own() -> None:
    rows = join([Turn([1, 2], [3, 4]), Turn([1, 9, 3, 4, 5], [6])])
    assert [row.ids for row in rows] == [[1, 2, 3, 4], [1, 9, 3, 4, 5, 6]]
    assert [row.loss_tokens for row in rows] == [2, 1]


@given(turns)
def test_every_answer_is_learnt_once_after_exactly_its_prompt(found: list[Turn]) -> None:
    rows = join(found)
    learnt = [(tuple(row.ids[:start]), tuple(row.ids[start:stop])) for row in rows for start, stop in row.loss_spans]
    assert sorted(learnt) == sorted((tuple(turn.prompt), tuple(turn.answer)) for turn in found)
    for row in rows:
        assert all(stop <= start for (_, stop), (start, _) in zip(row.loss_spans, row.loss_spans[1:], strict=False))


def test_an_answer_that_ends_beyond_the_limit_is_left_out_and_earlier_ones_are_kept() -> None:
    collection = Collection(SFTConfig(max_length=4))
    collection.add([Turn([1, 2], [3, 4]), Turn([1, 2, 3, 4, 5], [6])])
    assert collection.rows == [Row(ids=[1, 2, 3, 4], loss_spans=[(2, 4)])]
    assert collection.turns_skipped == {"too_long": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": CompletionStatus.aborted}, "aborted"),
        ({"tokenizer": "other"}, "other_tokenizer"),
        ({"untrainable": "the engine sampled 2 tokens, and sent 1 token ids"}, "incomplete"),
        ({"finish_reason": "length"}, "truncated"),
        ({"finish_reason": "tool_calls", "sampling": Sampling(max_tokens=1)}, "truncated"),
        ({"hint": "say it"}, "hinted"),
    ],
)
def test_completions_that_are_not_imitated(changes: dict[str, Any], reason: str) -> None:
    collection = Collection(SFTConfig())
    found = {"c0": completion("c0", [5], **changes), "c1": completion("c1", [6])}
    collection.add_trajectory(
        TrajectoryRef(id="t", reward=None, completions=["c0", "c1", "c2"]), found, tokenizer="tok"
    )
    assert collection.turns_skipped == {reason: 1, "missing": 1}
    assert collection.rows == [Row(ids=[1, 2, 3, 6], loss_spans=[(3, 4)])]


def test_greedy_answers_and_those_of_other_policies_can_be_imitated() -> None:
    collection = Collection(SFTConfig())
    found = {"c0": completion("c0", [5], policy="teacher", sampling=Sampling(temperature=0.0))}
    collection.add_trajectory(TrajectoryRef(id="t", reward=1.0, completions=["c0"]), found, tokenizer="tok")
    assert collection.turns == 1


def test_with_a_least_reward_unrewarded_runs_are_left_out() -> None:
    collection = Collection(SFTConfig(min_reward=0.5))
    found = {"c0": completion("c0", [5])}
    for number, reward in enumerate((0.4, None, float("nan"), 0.5)):
        ref = TrajectoryRef(id=f"t{number}", reward=reward, completions=["c0"])
        collection.add_trajectory(ref, found, tokenizer="tok")
    assert collection.trajectories_skipped == {"low_reward": 1, "no_reward": 2}
    assert collection.turns == 1


def test_nothing_of_the_validation_is_imitated() -> None:
    same, other = Row(ids=[1, 2, 3], loss_spans=[(1, 2), (2, 3)]), Row(ids=[1, 2, 4], loss_spans=[(2, 3)])
    given = Demonstrations(rows=[same, other], turns=3).with_validation(Demonstrations(rows=[same], turns=2))
    assert (given.rows, given.turns, given.turns_skipped) == ([other], 1, {"in_validation": 2})
    assert given.validation is not None
    assert given.validation.rows == [same]
    assert Demonstrations.model_validate_json(given.model_dump_json()) == given
    nothing = Demonstrations(rows=[same], turns=2).with_validation(given.validation)
    assert nothing.why_nothing("imitate") == "nothing to imitate: 2 in_validation"
