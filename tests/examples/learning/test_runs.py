"""The table of finished runs."""

from __future__ import annotations

from art_examples.learning.runs import parts


def test_parts_of_the_reward_are_shown_from_stage_to_stage_without_the_success() -> None:
    before = {"parts": {"letters": 0.1, "success": 0.0}}
    after = {"parts": {"letters": 0.175, "similarity": 0.25, "success": 0.0}}
    assert parts([before, None, after]) == "letters 0.100 → 0.175\nsimilarity 0.000 → 0.250"
    assert parts([{"parts": {"success": 0.5}}]) == ""
