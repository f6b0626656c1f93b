"""Whether a run was trained, and why not, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.homes.ledger_rows import row
from trainer_server.dashboard.step_history import of_completion, steps_of, why_never_sent
from trainer_server.dashboard.tokens import shade, shown_tokens
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.step_tokens import CompletionInStep, LeftOut, StepTokens, write_step_tokens
from trainer_server.wire import CompletionStatus, Job, JobStatus, StepRequest, StepResult

MEASURED = CompletionInStep(
    trajectory="t", completion="c", advantage=-0.5, trained=[True, False], logprobs=[-0.6, None], entropy=[1.0, None]
)


@pytest.fixture
def board(tmp_path: Path) -> JobQueue:
    return JobQueue(tmp_path / "jobs")


def accepted(board: JobQueue, tokens: StepTokens | None, ended: JobStatus | None) -> str:
    request = StepRequest.model_validate({"groups": [{"scenario_id": "s", "trajectories": []}]})
    file = board.accept("step", "agent", request=request)
    if tokens is not None:
        write_step_tokens(board.root / file.id, tokens)
    if ended is not None:
        result = StepResult(version=4, trajectories=["t"]) if ended is JobStatus.succeeded else None
        error = None if result else "no memory"
        board.finish(Job(id=file.id, kind="step", policy="agent", status=ended, created=1, result=result, error=error))
    return file.id


def test_what_steps_say_of_a_run(board: JobQueue) -> None:
    left = [LeftOut(trajectory="u", reason="equal_rewards"), LeftOut(trajectory="v", completion="d", reason="greedy")]
    good = accepted(board, StepTokens(completions=[MEASURED], left_out=left), JobStatus.succeeded)
    failed, waiting = accepted(board, None, JobStatus.failed), accepted(board, None, None)
    sent = [
        (good, "t", 1.0),
        (good, "u", 1.0),
        (good, "v", 1.0),
        (good, "w", None),
        (failed, "t", 1.0),
        (waiting, "t", 1.0),
        ("job-gone", "t", 1.0),
    ]
    told = [(one.state, one.words) for one in reversed(steps_of(board, sent))]
    assert [state for state, _ in told] == [
        "trained",
        "not trained",
        "not trained",
        "not trained",
        "ended without a version",
        "waits",
        "not known",
    ]
    words = [words for _, words in told]
    assert words[0] == "made version 4"
    assert "got the same reward" in words[1]
    assert "temperature 0" in words[2]
    assert words[3] == "it has no reward"
    assert "no memory" in words[4]


def test_what_is_said_of_a_completion(board: JobQueue) -> None:
    left = [LeftOut(trajectory="t", completion="d", reason="stale")]
    job = accepted(board, StepTokens(completions=[MEASURED], left_out=left), JobStatus.succeeded)
    steps = steps_of(board, [(job, "t", 1.0)])
    trained = row("c")
    step, measured, words = of_completion(trained, steps)
    assert (step, measured, words) == (steps[0], MEASURED, "trained: 1 of 2 tokens had a loss")
    assert "too old" in of_completion(row("d"), steps)[2]
    aborted = trained.model_copy(update={"status": CompletionStatus.aborted})
    assert "the client went away" in of_completion(aborted, [])[2]
    assert of_completion(trained, [])[2] == why_never_sent(None, []).replace("It has no reward, and ", "").replace(
        "was sent it.", "was sent it until now"
    )


def test_tokens_show_what_is_known_and_nothing_else() -> None:
    known, unknown = shown_tokens(row("c"), ["a", None], MEASURED, 0)
    assert (known.logprob, round(known.gap or 0, 3), known.entropy, known.advantage, known.trained) == (
        -0.5,
        -0.1,
        1.0,
        -0.5,
        True,
    )
    assert known.classes == "tok l2 gn3 e3 an3 t1"
    assert (unknown.gap, unknown.entropy, unknown.trained, unknown.text) == (None, None, False, None)
    assert "trainer − sampler -0.100" in known.title
    assert "forced" in unknown.title
    (bare, _) = shown_tokens(row("c"), ["a", "b"], None, 0)
    assert (bare.classes, bare.gap, bare.advantage, bare.trained) == ("tok l2", None, None, None)
    constrained = row("c").model_copy(update={"constrained": ["grammar"]})
    assert shown_tokens(constrained, ["a"], MEASURED, 0)[0].gap is None
    assert [shade(value, 4.0) for value in (0, 0.1, 4, 400, float("inf"), -1)] == [0, 1, 6, 6, 6, 0]
