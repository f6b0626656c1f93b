"""One optimizer step: what it learns from, what it leaves out, and that it goes on where it stopped."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from tests.support.training.models import ARCHITECTURES, first_layers, tiny_model
from tests.support.training.worker import COMPLETIONS, completion, groups, make_worker, step
from trainer_server.common import Home
from trainer_server.engines.package_models import PACKAGE_MODELS
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.policies.store import OPTIMIZER, AdapterStore
from trainer_server.process.hardware import cpu_dtype
from trainer_server.training import optimizer as update_check
from trainer_server.training.grpo.batch import Origin, Sample, gather_batch
from trainer_server.training.grpo.minibatch import Tokens, minibatches
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.speed import flops_per_token
from trainer_server.training.model.tree import pack
from trainer_server.training.worker import Worker
from trainer_server.wire import (
    CompletionStatus,
    Continuation,
    GroupRef,
    GRPOConfig,
    PolicySpec,
    Sampling,
    StepRequest,
    TrajectoryRef,
)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return make_worker(tmp_path)


def test_rewarded_tokens_get_likelier(worker: Worker) -> None:
    for _ in range(8):
        trained = step(worker, groups(1.0, 0.0, 0.0), lr=1e-2)
        assert trained.error is None
    latest = worker.store.versions("p")[-1]
    assert latest == 8
    worker.model.load(PolicySpec(name="p"), worker.store.directory("p", latest))
    after = logps(worker)
    worker.model.load(PolicySpec(name="p"), worker.store.directory("p", 0))
    before = logps(worker)
    assert after[0] > before[0] + 0.1
    assert after[0] - before[0] > after[2] - before[2]  # c2 shares tokens with c0


def test_a_step_tells_how_full_its_rows_are_and_how_fast_it_was(worker: Worker) -> None:
    result = step(worker, groups(1.0, 0.0, 0.0), num_iterations=2).result
    assert result is not None
    metrics = result.metrics
    tokens = metrics["tokens_unique"] + metrics["tokens_repeated"]
    assert metrics["row_fill"] == pytest.approx(tokens / metrics["rows"] / GRPOConfig().token_budget)
    seconds = metrics["seconds"]["forward"] + metrics["seconds"]["backward"]
    assert metrics["tokens_per_second"] == pytest.approx(2 * tokens / seconds)
    assert 0 < metrics["mfu"] < 1


def test_of_experts_those_count_that_a_token_goes_through() -> None:
    config = Qwen3MoeConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=4, intermediate_size=8,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    sizes = {name: weight.numel() for name, weight in model.model.layers.named_parameters()}
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    assert experts == 2 * 6 * 3 * 8 * 4  # gate, up and down
    assert flops_per_token(model) == 4 * (sum(sizes.values()) - experts + experts / 3)


def logps(worker: Worker) -> list[float]:
    found = []
    for one in COMPLETIONS:
        (row,) = pack([np.array(one.prompt_token_ids)], [np.array(one.token_ids)], budget=100).rows
        with torch.no_grad():
            found.append(float(worker.model.logprobs(row, torch.ones(len(one.token_ids)))[0].sum()))
    return found


def test_version_0_changes_nothing(worker: Worker) -> None:
    state = load_file(worker.store.directory("p", 0) / "adapter_model.safetensors")
    assert all(not tensor.any() for name, tensor in state.items() if "lora_B" in name)
    assert all(tensor.any() for name, tensor in state.items() if "lora_A" in name)


def test_equal_rewards_make_no_version(worker: Worker) -> None:
    trained = step(worker, groups(0.5, 0.5, 0.5))
    assert trained.result.version == 0
    assert "all the same" in trained.result.metrics["skipped"]
    assert trained.result.metrics["groups_skipped"] == 1


def test_missing_and_nan_rewards_are_counted_and_not_trained(worker: Worker) -> None:
    trained = step(worker, groups(1.0, None, float("nan"), 0.0))
    assert trained.result.metrics["trajectories_skipped"] == {"no_reward": 2}
    assert trained.result.metrics["completions_skipped"] == {"missing": 1}  # c3 is not in the ledger


def of(*references: tuple[str, float | None, list[str]], scenario: str = "s") -> GroupRef:
    trajectories = [TrajectoryRef(id=id, reward=reward, completions=texts) for id, reward, texts in references]
    return GroupRef(scenario_id=scenario, trajectories=trajectories)


def test_a_trajectory_that_is_sent_fifty_times_counts_once(tmp_path: Path) -> None:
    once, often = (make_worker(tmp_path / name) for name in ("once", "often"))
    runs = [("good", 1.0, ["c0"]), ("bad", 0.0, ["c1"]), ("other", 0.5, ["c2"])]
    step(once, [of(*runs)])
    trained = step(often, [of(*[runs[0]] * 50, *runs[1:], ("copy", 1.0, ["c0"])), of(*runs[:2], scenario="again")])
    assert trained.result.metrics["trajectories_skipped"] == {"repeated": 49 + 1 + 2}
    assert trained.result.metrics["reward_mean"] == 0.5
    weights = adapter(once, 1)
    assert all(torch.equal(weights[name], weight) for name, weight in adapter(often, 1).items())


def test_a_run_that_is_sent_alone_too_is_compared_where_it_can_be() -> None:
    found = {name: completion(name, [5]) for name in ("c0", "c1")}
    refs = [of(("a", 1.0, ["c0"]), scenario="alone"), of(("a", None, ["c0"]), ("a", 1.0, ["c0"]), ("b", 0.0, ["c1"]))]
    batch = gather_batch(refs, found, GRPOConfig(), policy="p", version=0, origin=Origin("tiny", "tok"))
    assert [sample.completion.id for sample in batch.samples] == ["c0", "c1"]
    assert batch.trajectories_skipped == {"repeated": 1, "no_reward": 1}


def test_parts_of_a_run_that_overlap_train_a_completion_once() -> None:
    parts = [
        TrajectoryRef(id=f"r/{part}", run="r", reward=1.0, completions=texts)
        for part, texts in (("a", ["c0", "c1"]), ("b", ["c1", "c2"]))
    ]
    group = GroupRef(scenario_id="s", trajectories=parts, baseline=0.0)
    found = {name: completion(name, [5]) for name in ("c0", "c1", "c2")}
    batch = gather_batch([group], found, GRPOConfig(), policy="p", version=0, origin=Origin("tiny", "tok"))
    assert [sample.completion.id for sample in batch.samples] == ["c0", "c1", "c2"]


@pytest.mark.parametrize(
    ("refs", "message"),
    [
        ([of(("a", 1.0, ["c0"]), ("b", 0.0, ["c0"]))], "'a' and 'b' are made of the same completions"),
        ([of(("a", 1.0, ["c0"]), ("b", 0.0, ["c0", "unknown"]))], "'a' and 'b' are made of the same completions"),
        (
            [
                of(("a", 1.0, ["c0", "c1"]), ("b", 0.0, ["c2"])),
                of(("a", 0.0, ["c1"]), ("b", 1.0, ["c0"]), scenario="t"),
            ],
            "'a' gives its completion 'c1' two",
        ),
        ([of(("a", 1e308, ["c0"]), ("b", 1e308, ["c1"]))], "'a': the reward is 1e\\+308, beyond ±1e\\+06: scale the"),
        ([of(("a", 0.0, ["c0"]), ("b", -1e200, ["c1"]))], "'b': the reward is -1e\\+200, beyond ±1e\\+06"),
    ],
)
def test_rewards_that_cannot_be_compared_fail_the_step(worker: Worker, refs: list[GroupRef], message: str) -> None:
    trained = step(worker, refs, scale_rewards="batch")
    assert re.search(message, trained.error)
    assert worker.store.versions("p") == [0]


def test_completions_of_evaluations_are_not_trained() -> None:
    found = {name: completion(name, [5]) for name in ("c0", "c1", "c2")}
    batch = gather_batch(
        groups(1.0, 0.0, 0.5),
        found,
        GRPOConfig(),
        policy="p",
        version=0,
        origin=Origin("tiny", "tok"),
        evaluations={"c0"},
    )
    assert [sample.completion.id for sample in batch.samples] == ["c1", "c2"]
    assert batch.trajectories_skipped == {"evaluation": 1}
    assert batch.rewards == [0.0, 0.5]


def test_weights_that_are_no_model_any_more_make_no_version(worker: Worker) -> None:
    trained = step(worker, groups(1.0, 0.0, 0.5), lr=1e30)
    assert "the largest weight is 1e+30 after training" in trained.error
    assert "No version was made; try a smaller lr" in trained.error
    assert worker.store.versions("p") == [0]
    assert step(worker, groups(1.0, 0.0, 0.5)).result.version == 1  # the next step goes on from the good weights


def test_a_text_that_became_unlikely_makes_no_version(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_check, "MOST_FALL", 0.5)  # 32 tokens cannot become 22,000 times less likely
    trained = step(worker, groups(-1.0, 1.0, 1.0), lr=0.3)
    assert re.search(r"the mean log-prob of a text fell from -.* to -.* nats .*No version was made", trained.error)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": CompletionStatus.aborted}, "aborted"),
        ({"sampling": Sampling(temperature=0.0)}, "greedy"),
        ({"base_model": "other"}, "other_base_model"),
        ({"tokenizer": "other"}, "other_tokenizer"),
        ({"policy": "q"}, "other_policy"),
        ({"policy": None}, "other_policy"),
    ],
)
def test_what_is_never_trained(changes: dict[str, Any], reason: str) -> None:
    found = {"c0": completion("c0", [5], **changes), "c1": completion("c1", [6])}
    batch = gather_batch(groups(1.0, 0.0), found, GRPOConfig(), policy="p", version=0, origin=Origin("tiny", "tok"))
    assert [sample.completion.id for sample in batch.samples] == ["c1"]
    assert batch.completions_skipped == {reason: 1}


def test_drift_counts_whatever_is_trained() -> None:
    first = completion("c0", [5, 6], status=CompletionStatus.aborted)
    prompt = [*first.prompt_token_ids, 5, 9]
    second = completion(
        "c1", [7], prompt_token_ids=prompt, created=1.0, continues="c0", continuation=Continuation.thoughts
    )
    found = {"c0": first, "c1": second}
    batch = gather_batch(groups(1.0, 0.0), found, GRPOConfig(), policy="p", version=0, origin=Origin("tiny", "tok"))
    metrics = batch.metrics()
    assert metrics["prefix_drift"] == 0.5
    assert metrics["continuations"] == {"thoughts": 1}


def test_tokens_that_a_grammar_forced_are_not_trained() -> None:
    forced = completion("c0", [5, 6, 7], logprobs=[0.0, -1.0, 0.0], constrained=["grammar"])
    batch = gather_batch(
        groups(1.0, 0.0),
        {"c0": forced, "c1": completion("c1", [6])},
        GRPOConfig(),
        policy="p",
        version=0,
        origin=Origin("tiny", "tok"),
    )
    assert batch.samples[0].trained_mask == (False, True, False)
    assert batch.metrics()["constrained"] == 1


def test_a_completion_that_a_grammar_forced_whole_is_left_out() -> None:
    forced = completion("c0", [5, 6], logprobs=[0.0, 0.0], constrained=["grammar"])
    batch = gather_batch(
        groups(1.0, 0.0),
        {"c0": forced, "c1": completion("c1", [6])},
        GRPOConfig(),
        policy="p",
        version=0,
        origin=Origin("tiny", "tok"),
    )
    assert [sample.completion.id for sample in batch.samples] == ["c1"]
    assert batch.completions_skipped == {"forced": 1}


@pytest.mark.parametrize(
    "cut", [{"finish_reason": "length"}, {"finish_reason": "tool_calls", "sampling": Sampling(max_tokens=2)}]
)
def test_truncated_completions_can_be_masked(cut: dict[str, Any]) -> None:
    found = {"c0": completion("c0", [5, 6], **cut), "c1": completion("c1", [6])}
    for masked, kept in ((True, ["c1"]), (False, ["c0", "c1"])):
        config = GRPOConfig(mask_truncated_completions=masked)
        batch = gather_batch(groups(1.0, 0.0), found, config, policy="p", version=0, origin=Origin("tiny", "tok"))
        assert [sample.completion.id for sample in batch.samples] == kept
        assert batch.completions_skipped == ({"truncated": 1} if masked else {})


def test_the_length_of_all_completions_of_the_policy_is_measured() -> None:
    found = {
        "c0": completion("c0", [5, 6, 7], finish_reason="length"),
        "c1": completion("c1", [6], status=CompletionStatus.aborted),
        "c2": completion("c2", [5] * 9, policy="q"),
    }
    batch = gather_batch(
        groups(1.0, 1.0, 0.0), found, GRPOConfig(), policy="p", version=0, origin=Origin("tiny", "tok")
    )
    metrics = batch.metrics()
    names = ("completion_length_mean", "completion_length_max", "completions_truncated", "tokens_sampled")
    assert [metrics[name] for name in names] == [2.0, 3, 0.5, 4]


def test_skipped_groups_are_counted_by_reason_and_belong_to_the_batch() -> None:
    """The deviation of the batch is that of all its rewards, as in TRL."""

    def group(*rewards: float | None, baseline: float | None = None, start: int = 0) -> GroupRef:
        return groups(*rewards, start=start)[0].model_copy(update={"baseline": baseline})

    batch = gather_batch(
        [
            group(0.0, 1.0),
            group(1.0, 1.0, start=2),
            group(1.0, start=4),
            group(None, start=5),
            group(0.5, baseline=0.5, start=6),
        ],
        {f"c{i}": completion(f"c{i}", [5]) for i in range(7)},
        GRPOConfig(scale_rewards="batch"),
        policy="p",
        version=0,
        origin=Origin("tiny", "tok"),
    )
    metrics = batch.metrics()
    assert metrics["groups_skipped"] == 4
    assert metrics["groups_skipped_by"] == {"equal_rewards": 2, "single_reward": 1, "no_reward": 1}
    deviation = statistics.stdev([0.0, 1.0, 1.0, 1.0, 1.0, 0.5])
    assert [one.advantage for one in batch.samples] == pytest.approx([-0.5 / deviation, 0.5 / deviation], rel=1e-3)


def test_without_its_optimizer_state_a_version_is_trained_alike_by_everyone(tmp_path: Path) -> None:
    """Which samples go into which minibatch is drawn; where there is no random state to go on from, by the version."""
    found = []
    for name, drawn in (("a", 0), ("b", 5)):
        worker = make_worker(tmp_path / name)
        step(worker, two_groups())
        (worker.store.directory("p", 1) / OPTIMIZER).unlink()
        torch.rand(drawn)  # what this process did before
        trained = step(worker, two_groups(), lr=1e-2, num_minibatches=3)
        assert "began anew" in trained.result.metrics["optimizer"]
        found.append(adapter(worker, 2))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_small_token_budget_gives_the_same_step(tmp_path: Path) -> None:
    results = []
    for name, budget in (("a", 8192), ("b", 6)):
        worker = make_worker(tmp_path / name)
        trained = step(worker, groups(1.0, 0.0, 0.3), lr=1e-2, token_budget=budget)
        results.append((trained.result.metrics, adapter(worker, 1)))
    assert results[0][0]["rows"] == 1
    assert results[1][0]["rows"] > 1
    assert results[0][0]["loss"] == pytest.approx(results[1][0]["loss"], abs=1e-6)
    assert results[0][0]["grad_norm"] == pytest.approx(results[1][0]["grad_norm"], rel=1e-4)


def test_resumed_training_equals_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    whole = make_worker(tmp_path / "whole")
    for _ in range(4):
        step(whole, groups(1.0, 0.0, 0.3), lr=1e-2)
    first = make_worker(tmp_path / "parts")
    for _ in range(2):
        step(first, groups(1.0, 0.0, 0.3), lr=1e-2)
    again = Worker(
        first.home,
        tiny_model(tmp_path / "fresh", ARCHITECTURES["llama"]),
        ledger=first.ledger,
        origin=Origin("tiny", "tok"),
    )
    for _ in range(2):
        step(again, groups(1.0, 0.0, 0.3), lr=1e-2)
    expected, found = adapter(whole, 4), adapter(again, 4)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """torch computes on two threads, whatever the environment says."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_the_embedded_model_is_trained_to_the_same_bits_as_often_as_one_likes(tmp_path: Path) -> None:
    """In the numbers that trainers compute with on this processor, with two threads and a prefix that branches: twice
    in a row, and resumed by a process that begins anew.

    Its first layers only: all layers are computed by the same kernels, on matrices of the same shapes.
    """
    path = first_layers(PACKAGE_MODELS["embedded"].ensure(Home.find().cache), 3, tmp_path / "model")
    rng = random.Random(0)
    prompt = [rng.randrange(1000, 40000) for _ in range(120)]
    found = [
        completion(f"c{i}", [rng.randrange(1000, 40000) for _ in range(12 + i)], prompt_token_ids=prompt)
        for i in range(4)
    ]

    def new_worker(home: Home, ledger: SQLiteLedger) -> Worker:
        model = PolicyModel(str(path), dtype=getattr(torch, cpu_dtype()), device="cpu")
        return Worker(home, model, ledger=ledger, origin=Origin("tiny", "tok"))

    def bits(where: Path, *, again: bool) -> dict[str, torch.Tensor]:
        home = Home(where)
        ledger = SQLiteLedger(home.ledger)
        asyncio.run(ledger.add(*found))
        ledger.close()
        worker = new_worker(home, ledger)
        worker.store.register(PolicySpec(name="p"), "tiny")
        worker.do(worker.queue.accept("create", "p", spec=PolicySpec(name="p")))
        for at in range(2):
            if again and at == 1:
                worker = new_worker(home, ledger)
            trained = step(worker, groups(*(i % 3 / 2 for i in range(4))), lr=1e-3, num_iterations=2, num_minibatches=2)
            assert trained.error is None
        return adapter(worker, 2)

    one, two = bits(tmp_path / "a", again=False), bits(tmp_path / "b", again=True)
    assert all(torch.equal(one[name], two[name]) for name in one)


def adapter(worker: Worker, version: int) -> dict[str, torch.Tensor]:
    return load_file(worker.store.directory("p", version) / "adapter_model.safetensors")


def test_a_job_taken_up_twice_makes_one_version(worker: Worker) -> None:
    request = StepRequest(groups=groups(1.0, 0.0, 0.3), config=GRPOConfig(max_logp_gap=None))
    job = worker.queue.accept("step", "p", request=request)
    worker.do(job)
    (worker.home.jobs / job.id / "trained.json").unlink()  # killed between publishing and reporting
    worker.do(job)
    trained = worker.queue.training_outcome(job.id)
    assert trained is not None
    assert trained.result is not None
    assert trained.result.version == 1
    assert worker.store.versions("p") == [0, 1]


def test_a_failing_job_is_reported_and_the_next_one_runs(worker: Worker) -> None:
    job = worker.queue.accept("step", "nobody", request=StepRequest(groups=groups(1.0, 0.0)))
    worker.do(job)
    trained = worker.queue.training_outcome(job.id)
    assert trained is not None
    assert "no policy 'nobody'" in str(trained.error)
    assert step(worker, groups(1.0, 0.0, 0.3)).result.version == 1


def test_no_pickle_among_the_files_of_a_version(worker: Worker) -> None:
    step(worker, groups(1.0, 0.0, 0.3))
    names = sorted(path.name for path in worker.store.directory("p", 1).iterdir())
    assert [name for name in names if not name.endswith((".safetensors", ".json", ".md"))] == []


def test_older_versions_and_constraints(worker: Worker) -> None:
    """Completions of version 0 train version 1: ratios against the sampler, or recomputed when constrained."""
    step(worker, groups(1.0, 0.0, 0.3), lr=1e-2)
    trained = step(worker, groups(1.0, 0.0, 0.3), lr=1e-2)
    assert trained.result.version == 2
    assert trained.result.metrics["ratio_mean"] != pytest.approx(1.0, abs=1e-3)  # c0-c2 carry made-up log-probs


def test_with_decoupled_clipping_an_older_completion_has_ratio_1_and_a_weight_against_its_sampler(
    worker: Worker,
) -> None:
    """Closed form, one update: −Σ min(π₁/μ, 1.5) · A / tokens. The ledger has log-probs of −2 for every token."""
    step(worker, groups(1.0, 0.0, 0.3), lr=1e-2)
    worker.model.load(PolicySpec(name="p"), worker.store.directory("p", 1))
    weights = []
    for one, advantage in zip(COMPLETIONS, (1.0, 1.0, -0.5), strict=True):
        (row,) = pack([np.array(one.prompt_token_ids)], [np.array(one.token_ids)], budget=100).rows
        with torch.no_grad():
            logp = worker.model.logprobs(row, torch.ones(len(one.token_ids)))[0]
        weights += ((logp + 2.0).exp().clamp(max=1.5) * advantage).tolist()
    options = {"scale_rewards": "none", "importance_sampling_cap": 1.5, "proximal_policy": "step"}
    metrics = step(worker, [runs("a", "b")], **options).result.metrics
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["staleness_max"] == 1
    assert metrics["loss"] == pytest.approx(-sum(weights) / 9, abs=1e-6)


def test_both_proximal_policies_train_the_newest_version_to_the_same_bits(tmp_path: Path) -> None:
    found = []
    for name in ("sampler", "step"):
        worker = make_worker(tmp_path / name)
        step(worker, two_groups(), lr=1e-2, num_iterations=2, proximal_policy=name)
        found.append(adapter(worker, 1))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_completions_of_one_run_are_trained_by_the_log_probs_of_their_own_versions() -> None:
    texts = [completion(f"c{version}", [5, 6], version=version, logprobs=[-1.0 - version] * 2) for version in (1, 2, 3)]
    batch = gather_batch(
        [of(("a", 1.0, ["c1", "c2", "c3"]), ("b", 0.0, []))],
        {text.id: text for text in texts},
        GRPOConfig(max_staleness=1),
        policy="p",
        version=3,
        origin=Origin("tiny", "tok"),
    )
    assert batch.completions_skipped == {"stale": 1}
    tokens = Tokens.of(batch.samples, 3)
    assert tokens.sampled_logp_F.tolist() == [-3.0, -3.0, -4.0, -4.0]
    assert tokens.old_logp_F[:2].tolist() == [-3.0, -3.0], "the sampler's"
    assert tokens.old_logp_F[2:].isnan().all(), "those that the step computes"


def test_an_older_constrained_completion_is_weighed_against_what_its_version_would_have_sampled() -> None:
    sample = Sample(completion("c", [5, 6], constrained=["top_p"]), 1.0, (True, True), old_logprobs=[-1.0, -3.0])
    plain, decoupled = (Tokens.of([sample], 1, name) for name in ("sampler", "step"))
    assert (plain.old_logp_F.tolist(), plain.sampled_logp_F.isnan().all()) == ([-1.0, -3.0], True)
    assert (decoupled.sampled_logp_F.tolist(), decoupled.old_logp_F.isnan().all()) == ([-1.0, -3.0], True)


def test_the_reference_of_the_kl_penalty_is_a_version(worker: Worker) -> None:
    step(worker, groups(1.0, 0.0, 0.3), lr=1e-2)
    assert step(worker, groups(1.0, 0.0, 0.3), beta=0.1).result.metrics["kl"] > 0
    third = step(worker, groups(1.0, 0.0, 0.3), beta=0.1, reference_version=2)
    assert third.result.metrics["kl"] == pytest.approx(0.0, abs=1e-9)  # the version that is trained: nothing between
    assert "reference_version=9" in step(worker, groups(1.0, 0.0, 0.3), beta=0.1, reference_version=9).error


def two_groups() -> list[GroupRef]:
    return [
        GroupRef(
            scenario_id=str(at),
            trajectories=[TrajectoryRef(id=f"{at}{i}", reward=float(i), completions=[f"c{at + i}"]) for i in range(2)],
        )
        for at in range(2)
    ]


def test_passes_and_minibatches_are_updates_of_one_step(worker: Worker) -> None:
    metrics = step(worker, two_groups(), lr=1e-2, num_iterations=2, num_minibatches=2).result.metrics
    assert (metrics["updates"], metrics["updates_total"]) == (4, 4)
    assert metrics["ratio_min"] < 1.0 < metrics["ratio_max"]  # against the version that the step began with
    assert metrics["tokens_trained"] == 3 + 2 + 2 + 4
    assert step(worker, two_groups()).result.metrics["updates_total"] == 5


def test_several_updates_that_hardly_move_have_the_loss_of_one(tmp_path: Path) -> None:
    plain = step(make_worker(tmp_path / "a"), two_groups()).result.metrics
    several = step(make_worker(tmp_path / "b"), two_groups(), num_iterations=3, lr=1e-12).result.metrics
    assert several["loss"] == pytest.approx(plain["loss"], abs=1e-6)
    assert several["ratio_max"] == pytest.approx(1.0, abs=1e-4)


def test_steps_are_reproducible(tmp_path: Path) -> None:
    options = {"lr": 1e-2, "num_iterations": 2, "num_minibatches": 3, "entropy_coef": 0.01, "top_entropy_quantile": 0.5}
    found = []
    for name in ("a", "b"):
        worker = make_worker(tmp_path / name)
        for _ in range(2):
            assert step(worker, two_groups(), **options).error is None
        found.append(adapter(worker, 2))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_the_learning_rate_rises_and_falls_over_the_updates_of_the_policy(worker: Worker) -> None:
    rates = [
        step(
            worker, groups(1.0, 0.0, 0.3), lr=1e-3, lr_scheduler_type="linear", warmup_steps=1, max_steps=3
        ).result.metrics["lr"]
        for _ in range(4)
    ]
    assert rates == pytest.approx([0.0, 1e-3, 5e-4, 0.0])


def test_completions_too_far_behind_are_skipped_and_counted(worker: Worker) -> None:
    step(worker, groups(1.0, 0.0, 0.3))
    fresh = step(worker, groups(1.0, 0.0, 0.3), max_staleness=1).result.metrics
    assert (fresh["completions_skipped"], fresh["staleness_max"]) == ({}, 1)
    stale = step(worker, groups(1.0, 0.0, 0.3), max_staleness=1).result
    assert (stale.version, stale.metrics["completions_skipped"]) == (2, {"stale": 3})


def test_a_sampler_of_another_policy_fails_the_step(worker: Worker) -> None:
    failed = step(worker, groups(1.0, 0.0, 0.3), max_logp_gap=1.0)
    assert "nats per token" in failed.error
    assert worker.store.versions("p") == [0]
    (alarm,) = step(worker, groups(1.0, 0.0, 0.3)).result.metrics["alarms"]
    assert "trainer and engine differ" in alarm


def test_half_of_the_tokens_have_a_policy_gradient(worker: Worker) -> None:
    whole = step(worker, groups(1.0, 0.0, 0.3)).result.metrics
    half = step(worker, groups(1.0, 0.0, 0.3), top_entropy_quantile=0.5).result.metrics
    assert half["tokens_trained"] == whole["tokens_trained"]
    assert half["grad_norm"] != pytest.approx(whole["grad_norm"], rel=1e-3)


RUNS = {"a": (1.0, ["c0", "c1"]), "b": (-0.5, ["c2"])}
"""Advantages and calls of two runs: a baseline of 0 and no scale leave the rewards as they are."""


def runs(*names: str) -> GroupRef:
    trajectories = [TrajectoryRef(id=name, reward=RUNS[name][0], completions=RUNS[name][1]) for name in names]
    return GroupRef(scenario_id="-".join(names), trajectories=trajectories, baseline=0.0)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ([runs("a", "b")], {}),  # one row: a prefix tree
        ([runs("a", "b")], {"token_budget": 6}),  # several rows
        ([runs("a"), runs("b")], {"loss_type": "grpo"}),
    ],
)
def test_by_trajectory_the_gradient_of_a_step_is_the_one_by_hand(
    worker: Worker, given: list[GroupRef], options: dict[str, Any]
) -> None:
    """Run a has 5 tokens in two calls and advantage 1, run b 4 tokens in one call and −½: each token of a weighs
    1/(2 · 5), each of b 1/(2 · 4). After one update AdamW's first moment is (1 − β1) · gradient."""
    plain = {"scale_rewards": "none", "importance_sampling_cap": None, "max_grad_norm": 1e9}
    trained = step(worker, given, loss_aggregation="trajectory", **plain, **options)
    assert trained.error is None
    assert trained.result.metrics["loss"] == pytest.approx(-(1.0 - 0.5) / 2, abs=1e-7)
    moments = load_file(worker.store.directory("p", 1) / OPTIMIZER)

    worker.model.load(PolicySpec(name="p"), worker.store.directory("p", 0))
    weights = dict(worker.model.parameters())
    for weight in weights.values():
        weight.grad = None
    for one, factor in zip(COMPLETIONS, (1.0 / 10, 1.0 / 10, -0.5 / 8), strict=True):
        (row,) = pack([np.array(one.prompt_token_ids)], [np.array(one.token_ids)], budget=100).rows
        (-factor * worker.model.logprobs(row, torch.ones(len(one.token_ids)))[0].sum()).backward()
    assert any(weight.grad is not None and weight.grad.any() for weight in weights.values())
    for name, weight in weights.items():
        assert weight.grad is not None
        assert (moments[f"exp_avg.{name}"] / 0.1 - weight.grad).norm() <= 1e-5 * weight.grad.norm(), name


@pytest.mark.parametrize("count", [2, 3])
def test_by_trajectory_each_minibatch_has_whole_runs_and_its_own_mean(worker: Worker, count: int) -> None:
    """One group, two updates, a run each: their losses are the runs' negative advantages."""
    options = {"scale_rewards": "none", "importance_sampling_cap": None, "lr": 1e-12}
    trained = step(worker, [runs("a", "b")], loss_aggregation="trajectory", num_minibatches=count, **options)
    assert trained.result.metrics["updates"] == 2
    assert trained.result.metrics["loss"] == pytest.approx((-1.0 + 0.5) / 2, abs=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_by_trajectory_a_run_of_several_rewards_counts_as_one(worker: Worker, count: int) -> None:
    """Each call of run a has a reward of its own, and a group of its own; together they weigh what run b does."""
    options = {"scale_rewards": "none", "importance_sampling_cap": None, "lr": 1e-12, "num_minibatches": count}
    parts = [TrajectoryRef(id=f"a/{one}", reward=1.0, completions=[one], run="a") for one in RUNS["a"][1]]
    split = [GroupRef(scenario_id=part.id, trajectories=[part], baseline=0.0) for part in parts]
    trained = step(worker, [*split, runs("b")], loss_aggregation="trajectory", **options)
    assert trained.result.metrics["loss"] == pytest.approx((-1.0 + 0.5) / 2, abs=1e-5)
    assert trained.result.metrics["updates"] == count


def test_minibatches_keep_the_parts_of_a_trajectory_together() -> None:
    samples = [Sample(completion(f"c{i}", [1, 2]), 0.0, (True, True), i, i // 2) for i in range(4)]
    assert sorted(minibatches(samples, 3, random.Random(0), whole_trajectories=True)) == [[0, 1], [2, 3]]


def test_minibatches_keep_trajectories_whole_where_that_is_asked_for() -> None:
    samples = [Sample(completion(f"c{i}", [1, 2]), 0.0, (True, True), 0, i // 3) for i in range(6)]
    divided = minibatches(samples, 4, random.Random(0), whole_trajectories=True)
    assert sorted(divided) == [[0, 1, 2], [3, 4, 5]]
    assert sorted(map(len, minibatches(samples, 4, random.Random(0)))) == [1, 1, 2, 2]


@pytest.mark.parametrize(("count", "parts"), [(1, [6]), (2, [3, 3]), (3, [1, 2, 3]), (6, [1] * 6), (9, [1] * 6)])
def test_minibatches_keep_groups_whole_while_there_are_enough(count: int, parts: list[int]) -> None:
    found = [completion(f"c{i}", [1, 2]) for i in range(6)]
    samples = [Sample(one, 0.0, (True, True), group) for one, group in zip(found, (0, 1, 1, 2, 2, 2), strict=True)]
    divided = minibatches(samples, count, random.Random(0))
    assert sorted(map(len, divided)) == parts
    assert sorted(itertools.chain(*divided)) == list(range(6))


def test_stores_share_nothing_but_files(worker: Worker) -> None:
    assert AdapterStore(worker.home.policies).versions("p") == [0]
    assert JobQueue(worker.home.jobs).open_ids() == worker.queue.open_ids()
