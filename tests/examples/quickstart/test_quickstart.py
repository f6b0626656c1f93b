"""The rule that ends the training."""

from __future__ import annotations

from art_examples.quickstart.quickstart import TARGET, target_reason


def test_the_training_ends_when_the_reward_holds_for_two_steps() -> None:
    assert target_reason([TARGET, TARGET / 2, TARGET]) is None
    assert target_reason([TARGET]) is None
    assert target_reason([None, TARGET]) is None
    assert f"the reward was {TARGET}" in str(target_reason([0.0, TARGET, 1.0]))
