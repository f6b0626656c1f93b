"""A training command that runs to its end: a step, nothing to learn, or a failure."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from art_examples.learning.child import NOTHING, trained
from art_examples.learning.stage import mean_score

from trainer_server.wire import TrainingError


def said(output: str, error: str, status: int) -> list[str]:
    """A command that prints this and ends so."""
    program = "import sys; sys.stdout.write(sys.argv[1]); sys.stderr.write(sys.argv[2]); sys.exit(int(sys.argv[3]))"
    return [sys.executable, "-c", program, output, error, str(status)]


@pytest.mark.parametrize(
    ("command", "step"),
    [
        (said('{"version": 2, "metrics": {}}\n', "agent@2 is served\n", 0), {"version": 2, "metrics": {}}),
        (said('{"version": 1, "metrics": {"skipped": "no gradient"}}\n', "stays\n", 1), None),
        (said("", f"0 runs are compared\n{NOTHING}\n", 1), None),
    ],
)
def test_a_step_or_that_there_is_nothing_to_learn(command: list[str], step: dict[str, Any] | None) -> None:
    assert trained(command, {}) == step


@pytest.mark.parametrize(
    "command",
    [
        said("", "error: the trainer server does not answer", 1),
        said('{"version": 2, "metrics": {}}\n', "error: the store is locked", 1),
        said("", NOTHING, 2),
    ],
)
def test_a_step_that_fails_is_an_error_that_says_why(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingError, match=command[-2]):
        trained(command, {})
    assert command[-2] in capfd.readouterr().err


def test_the_mean_score_of_a_step_without_rewards_is_not_known() -> None:
    assert mean_score([1.0, 0.5]) == 0.75
    assert mean_score([]) is None
