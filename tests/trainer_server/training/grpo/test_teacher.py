"""Distillation from a teacher: a teacher that is the policy teaches nothing, and gradients are those of plain PyTorch.

The reference computes one sequence at a time, with the stock model and PEFT's LoRA.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.support.training.worker import COMPLETIONS, completion, make_worker, step
from trainer_server.jobs.job_files import Teaching
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.policies.store import OPTIMIZER
from trainer_server.training.grpo.batch import Origin, gather_batch
from trainer_server.training.grpo.loss import loss_named
from trainer_server.training.grpo.objective import Readouts, grpo_loss
from trainer_server.training.worker import Worker
from trainer_server.wire import (
    Completion,
    Distillation,
    GroupRef,
    GRPOConfig,
    PolicySpec,
    Sampling,
    StepRequest,
    TrajectoryRef,
)
from trainer_server.wire.steps import LOSS_NAMES

TURNS = [
    completion("u0", [5, 6, 7], version=1),
    completion("u1", [9, 4], version=1, prompt_token_ids=[1, 2, 3, 5, 6, 7, 11, 12], continues="u0"),
]
"""A run that calls a tool (5 6 7), reads its result (11 12), and answers."""
SAMPLED = [one.model_copy(update={"id": f"d{at}", "version": 1}) for at, one in enumerate(COMPLETIONS)]
"""Of version 1, which is trained."""
PLAIN = {"importance_sampling_cap": None, "max_grad_norm": 1e9, "loss_type": "dapo", "epsilon_high": 100.0}


@pytest.fixture(scope="module")
def two_policies(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    """Policies `p`, at version 1, and `big`, at version 1 with another rank; both differ from the base model."""
    where = tmp_path_factory.mktemp("teacher")
    made = make_worker(where)
    ledger = SQLiteLedger(made.home.ledger)
    others = [one.model_copy(update={"id": f"big-{one.id}", "policy": "big"}) for one in COMPLETIONS]
    asyncio.run(ledger.add(*others, *TURNS, *SAMPLED))
    ledger.close()
    spec = PolicySpec(name="big", rank=16, seed=3)
    made.store.register(spec, "tiny")
    made.do(made.queue.accept("create", "big", spec=spec))
    for policy, prefix in (("p", ""), ("big", "big-")):
        refs = [
            TrajectoryRef(id=f"t{at}", reward=reward, completions=[f"{prefix}c{at}"])
            for at, reward in enumerate((1.0, 0.0, 0.3))
        ]
        request = StepRequest(
            groups=[GroupRef(scenario_id="s", trajectories=refs)], config=GRPOConfig(lr=0.02, max_logp_gap=None)
        )
        job = made.queue.accept("step", policy, request=request)
        made.do(job)
        assert made.queue.training_outcome(job.id).error is None  # type: ignore[union-attr]
    (made.store.directory("p", 1) / OPTIMIZER).unlink()  # so that the first moment tells the next gradient
    return made


@pytest.fixture
def worker(two_policies: Worker) -> Iterator[Worker]:
    """The policies at version 1, also after other tests."""
    yield two_policies
    for version in two_policies.store.versions("p"):
        if version > 1:
            two_policies.store.quarantine("p", version, "another test begins")


def reference(worker: Worker, policy: str, version: int) -> Any:
    base = AutoModelForCausalLM.from_pretrained(worker.model._base.config._name_or_path, dtype=torch.float32)
    return PeftModel.from_pretrained(base, str(worker.store.directory(policy, version)), is_trainable=True)


def logp_by_hand(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    logits_TV = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    logp: torch.Tensor = logits_TV.log_softmax(1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    return logp


def gradient_of(worker: Worker, version: int) -> dict[str, torch.Tensor]:
    """After one update AdamW's first moment is (1 − β1) · gradient, where it began at β1 · 0."""
    moments = load_file(worker.store.directory("p", version) / OPTIMIZER)
    return {name.removeprefix("exp_avg."): m / 0.1 for name, m in moments.items() if name.startswith("exp_avg.")}


@pytest.mark.parametrize("teacher", ["p", "p@1"])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_teacher_that_is_the_policy_teaches_nothing(worker: Worker, teacher: str, minibatches: int) -> None:
    trained = step(
        worker,
        [GroupRef(scenario_id="s", trajectories=[TrajectoryRef(id="t", reward=None, completions=["d0", "d1", "d2"])])],
        distill={"teacher": teacher, "rewards": False},
        num_minibatches=minibatches,
        lr=0.0001,
        **PLAIN,
    )
    assert trained.error is None
    metrics = trained.result.metrics
    assert metrics["teacher"] == "p@1"
    assert metrics["teacher_tokens"] == 9
    assert metrics["teacher_kl"] == 0.0
    assert metrics["grad_norm_max"] == 0.0
    before, after = (
        load_file(worker.store.directory("p", version) / "adapter_model.safetensors")
        for version in (1, trained.result.version)
    )
    assert trained.result.version > 1
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("teacher", ["big", "big@1", "base", "p@0"])
@pytest.mark.parametrize("rewards", [True, False])
def test_the_gradient_is_that_of_plain_pytorch(worker: Worker, teacher: str, rewards: bool) -> None:
    """−Σ A · logp / tokens, with A = reward's advantage − weight · (log π − log teacher) at every sampled token, of a
    run with a tool call in two turns, and of one with a single turn."""
    student = reference(worker, "p", 1)
    name, _, number = teacher.partition("@")
    taught_by = None if teacher == "base" else reference(worker, name, int(number or 1))
    runs = [TURNS, [SAMPLED[2]]]
    given = [1.0, 0.0]
    mean = sum(given) / 2
    tokens = sum(len(one.token_ids) for run in runs for one in run)
    gaps = []
    for run, reward in zip(runs, given, strict=True):
        for one in run:
            logp = logp_by_hand(student, one.prompt_token_ids, one.token_ids)
            with torch.no_grad():
                if taught_by is None:
                    with student.disable_adapter():
                        other = logp_by_hand(student, one.prompt_token_ids, one.token_ids)
                else:
                    other = logp_by_hand(taught_by, one.prompt_token_ids, one.token_ids)
            gap = logp.detach() - other
            gaps.append(gap)
            advantage = (reward - mean if rewards else 0.0) - 0.5 * gap
            (-(advantage * logp).sum() / tokens).backward()
    refs = [
        TrajectoryRef(id=f"t{at}", reward=reward, completions=[one.id for one in run])
        for at, (run, reward) in enumerate(zip(runs, given, strict=True))
    ]
    trained = step(
        worker,
        [GroupRef(scenario_id="s", trajectories=refs)],
        distill=Distillation(teacher=teacher, weight=0.5, rewards=rewards),
        scale_rewards="none",
        lr=1e-5,
        **PLAIN,
    )
    assert trained.error is None
    assert trained.result.metrics["teacher_kl"] == pytest.approx(float(torch.cat(gaps).mean()), abs=1e-6)
    assert float(torch.cat(gaps).abs().mean()) > 0.01
    expected = {name.replace(".default.", "."): w.grad for name, w in student.named_parameters() if w.requires_grad}
    found = gradient_of(worker, trained.result.version)
    assert any(gradient.abs().max() > 1e-3 for gradient in found.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=2e-6)


HINTED = [7, 1, 2, 3]
"""The prompt of `SAMPLED` with a hint in it."""


def hinted_step(worker: Worker, hinted: dict[str, list[int]], **config: Any) -> Any:
    """A step on a group whose runs have all failed, the first two of which have the hint "h"."""
    refs = [
        TrajectoryRef(id=f"t{at}", reward=0.0, completions=[f"d{at}"], hint="h" if at < 2 else None) for at in range(3)
    ]
    request = StepRequest(
        groups=[GroupRef(scenario_id="s", trajectories=refs)],
        config=GRPOConfig(**{"max_logp_gap": None, "lr": 1e-5, **PLAIN, **config}),
    )
    job = worker.queue.accept("step", "p", request=request)
    assert not worker.queue.ready(job.id)  # the server renders the hinted prompts first
    worker.queue.write_teaching(job.id, Teaching(prompts={"h": hinted}))
    assert worker.queue.ready(job.id)
    worker.do(job)
    return worker.queue.training_outcome(job.id)


def test_the_policy_that_reads_a_hint_is_the_teacher_of_the_runs_that_failed_without_it(worker: Worker) -> None:
    """The reference: the same weights after the hinted prompt. The run that has no hint is left out."""
    student = reference(worker, "p", 1)
    gaps = []
    for one in SAMPLED[:2]:
        logp = logp_by_hand(student, one.prompt_token_ids, one.token_ids)
        gap = logp.detach() - logp_by_hand(student, HINTED, one.token_ids).detach()
        gaps.append(gap)
        ((gap * logp).sum() / 5).backward()
    trained = hinted_step(worker, {"d0": HINTED, "d1": HINTED})
    assert trained.error is None
    metrics = trained.result.metrics
    # a difference of log-probabilities of about -6, each with an error of one to two units in the last place, 5e-7
    assert metrics["teacher_kl"] == pytest.approx(float(torch.cat(gaps).mean()), abs=4e-6)
    assert (metrics["teacher_tokens"], metrics["completions_hinted"], metrics["groups_skipped"]) == (5, 2, 0)
    expected = {name.replace(".default.", "."): w.grad for name, w in student.named_parameters() if w.requires_grad}
    found = gradient_of(worker, trained.result.version)
    assert any(gradient.abs().max() > 1e-3 for gradient in found.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=2e-6)


def test_a_hint_that_changes_no_prompt_teaches_nothing(worker: Worker) -> None:
    trained = hinted_step(worker, {one.id: one.prompt_token_ids for one in SAMPLED[:2]})
    assert trained.result.metrics["teacher_kl"] == pytest.approx(0.0, abs=1e-6)
    assert trained.result.metrics["grad_norm_max"] == pytest.approx(0.0, abs=1e-6)


def test_a_prompt_that_cannot_have_its_hint_is_skipped_and_counted(worker: Worker) -> None:
    trained = hinted_step(worker, {"d0": HINTED})
    assert trained.result.metrics["completions_skipped"] == {"hint_not_rendered": 1}
    assert trained.result.metrics["completions_hinted"] == 1
    nothing = hinted_step(worker, {})
    assert nothing.result.metrics["skipped"] == "no completion can be trained: 2 hint_not_rendered"


def batch_of(found: list[Completion], scores: dict[str, list[float | None]], **distill: Any) -> Any:
    config = GRPOConfig(distill=Distillation(teacher="http://teacher:1", **distill))
    refs = [TrajectoryRef(id=one.id, reward=None, completions=[one.id]) for one in found]
    return gather_batch(
        [GroupRef(scenario_id="s", trajectories=refs)],
        {one.id: one for one in found},
        config,
        policy="p",
        version=0,
        origin=Origin("tiny", "tok"),
        teaching=Teaching(scores=scores),
    )


def test_tokens_without_a_score_are_not_trained_and_are_counted() -> None:
    found = [*COMPLETIONS, completion("c3", [5, 6]), completion("c4", [5], sampling=Sampling(temperature=0.5))]
    nan = float("nan")
    scores = {"c0": [-1.0, None, nan], "c1": [-1.0], "c2": [None] * 4, "c4": [-1.0]}
    batch = batch_of(found, scores, rewards=False)
    (sample,) = batch.samples
    assert sample.trained_mask == (True, False, False)
    assert sample.teacher_logprobs[0] == -1.0
    assert batch.completions_skipped == {"teacher_missing": 3, "teacher_temperature": 1}
    assert batch.metrics()["teacher_tokens_missing"] == 2 + 2 + 4 + 2 + 1


def test_beside_rewards_a_run_without_a_reward_is_never_trained() -> None:
    batch = batch_of(COMPLETIONS, {one.id: [-1.0] * len(one.token_ids) for one in COMPLETIONS})
    assert not batch.samples
    assert batch.trajectories_skipped == {"no_reward": 3}


@pytest.mark.parametrize(
    ("loss_type", "level"),
    [(name, level) for name in LOSS_NAMES for level in ("token", "sequence") if (name, level) != ("dppo", "sequence")],
)
def test_in_every_loss_a_teacher_changes_the_advantage_of_each_token(loss_type: str, level: str) -> None:
    """On policy: d loss / d logp = −token_weight · (A − weight · (logp − teacher_logp)), where there is a teacher."""
    config = GRPOConfig(
        loss_type=loss_type,
        importance_sampling_level=level,
        importance_sampling_cap=None,
        distill=Distillation(teacher="base", weight=0.5),
    )
    logp_R = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    nan_R, completion_R = torch.full((3,), torch.nan, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    teacher_R = torch.tensor([-3.0, -1.0, torch.nan], dtype=torch.float64)
    weights_R = loss_named(loss_type).token_weights(torch.tensor([3]), config)[completion_R]
    advantage_R = torch.full((3,), 0.25, dtype=torch.float64)
    given = Readouts(nan_R, nan_R, advantage_R, weights_R, completion_R, teacher_logp_R=teacher_R)
    result = grpo_loss(logp_R, given, config)
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert logp_R.grad is not None
    expected = -weights_R * torch.tensor([0.25 - 0.5 * 2.0, 0.25 + 0.5 * 1.0, 0.25])
    if level == "sequence":  # a ratio of the whole completion passes each token's gradient to all
        assert float(logp_R.grad.sum()) == pytest.approx(float(expected.sum()))
    else:
        torch.testing.assert_close(logp_R.grad, expected)
    assert result.teacher_gap_R is not None
    assert result.teacher_gap_R[:2].tolist() == [2.0, -1.0]
