"""The loss equals TRL's, and micro-batches add up."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer_server.training.grpo.loss import LOSSES, by_trajectory, loss_named
from trainer_server.training.grpo.objective import Readouts, grpo_loss
from trainer_server.wire import GRPOConfig

LENGTHS = (5, 1, 4)
TRL_LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo")
CASES = list(itertools.product(TRL_LOSSES, ("token", "sequence"), (0.0, 0.1), (None, 1.5), (None, 2.0)))


def flat(padded: torch.Tensor) -> torch.Tensor:
    return torch.cat([padded[i, :n] for i, n in enumerate(LENGTHS)])


def trl_loss(config: GRPOConfig, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """TRL's own loss on padded rows, its model replaced by given log-probs."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    stub: Any = SimpleNamespace(
        loss_type=config.loss_type,
        importance_sampling_level=config.importance_sampling_level,
        beta=config.beta,
        epsilon_low=config.epsilon,
        epsilon_high=config.epsilon_high,
        top_entropy_quantile=config.top_entropy_quantile,
        off_policy_mask_threshold=config.off_policy_mask_threshold,
        use_vllm=(config.importance_sampling_cap or config.importance_sampling_floor) is not None,
        vllm_importance_sampling_correction=True,
        max_completion_length=config.max_completion_length,
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=config.entropy_coef != 0,
        use_adaptive_entropy=False,
        entropy_coef=config.entropy_coef,
        args=SimpleNamespace(
            delta=config.delta,
            use_bias_correction_kl=config.use_bias_correction_kl,
            steps_per_generation=1,
            sapo_temperature_pos=config.sapo_temperature_pos,
            sapo_temperature_neg=config.sapo_temperature_neg,
        ),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1,
            gather=lambda x: x,
            reduce=lambda x, reduction: x,
            pad_across_processes=lambda x, dim, pad_index: x,
            sync_gradients=False,
        ),
        _metrics={"train": __import__("collections").defaultdict(list)},
    )
    stub.get_high_entropy_mask = lambda *a: GRPOTrainer.get_high_entropy_mask(stub, *a)
    stub.get_off_policy_mask = GRPOTrainer.get_off_policy_mask
    stub._get_per_token_logps_and_entropies = lambda *a, **k: (data["logp"], data["entropy"], None)
    inputs = {
        "prompt_ids": torch.zeros(3, 1, dtype=torch.long),
        "prompt_mask": torch.ones(3, 1),
        "completion_ids": torch.zeros(3, 5, dtype=torch.long),
        "completion_mask": data["mask"],
        "advantages": data["advantages"],
        "old_per_token_logps": data["old"],
        "ref_per_token_logps": data["reference"],
        "sampling_per_token_logps": data["sampled"],
        "importance_sampling_ratio": trl_correction(config, data),
        "num_items_in_batch": data["mask"].sum(),
    }
    loss: torch.Tensor = GRPOTrainer._compute_loss(stub, None, inputs)
    return loss


def trl_correction(config: GRPOConfig, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """TRL computes this where it generates; here in closed form."""
    gap = (data["old"] - data["sampled"]) * data["mask"]
    if config.importance_sampling_mode.startswith("sequence"):
        gap = gap.sum(-1, keepdim=True)
    weight, low, high = gap.exp(), config.importance_sampling_floor or 0.0, config.importance_sampling_cap or math.inf
    if config.importance_sampling_mode.endswith("truncate"):
        return weight.clamp(low, high)
    return weight * ((weight >= low) & (weight <= high))


def batch(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    base = -torch.rand(3, 5, generator=generator, dtype=torch.float64) * 3

    def near(scale: float) -> torch.Tensor:
        return base + torch.randn(3, 5, generator=generator, dtype=torch.float64) * scale

    mask = torch.tensor([[float(j < n) for j in range(5)] for n in LENGTHS], dtype=torch.float64)
    advantages = torch.tensor([1.3, -0.4, -0.9], dtype=torch.float64)
    return {
        "logp": near(0.0).requires_grad_(),
        "old": near(0.4),
        "sampled": near(0.4),
        "reference": near(0.4),
        "entropy": near(0.0).abs().requires_grad_(),
        "mask": mask,
        "advantages": advantages,
    }


def ours(config: GRPOConfig, data: dict[str, torch.Tensor], rows: slice = slice(None)) -> torch.Tensor:
    lengths = torch.tensor(LENGTHS)
    completion_R = torch.cat([torch.full((n,), i) for i, n in enumerate(LENGTHS)])
    keep = torch.isin(completion_R, torch.arange(3)[rows])
    entropy_R = flat(data["entropy"])
    active_R = (entropy_R >= entropy_R.detach().quantile(1 - config.top_entropy_quantile)).double()
    given = Readouts(
        old_logp_R=flat(data["old"])[keep],
        sampled_logp_R=flat(data["sampled"])[keep],
        advantage_R=data["advantages"][completion_R][keep],
        token_weight_R=loss_named(config.loss_type).token_weights(lengths, config)[completion_R][keep],
        completion_R=completion_R[keep],
        active_R=active_R[keep],
        entropy_scale=1 / float(active_R.sum()),
        reference_logp_R=flat(data["reference"])[keep],
    )
    return grpo_loss(flat(data["logp"])[keep], given, config, entropy_R[keep]).loss


@pytest.mark.parametrize(("loss_type", "level", "beta", "delta", "cap"), CASES)
def test_loss_and_gradient_equal_trl(
    loss_type: Any, level: Any, beta: float, delta: float | None, cap: float | None
) -> None:
    config = GRPOConfig(
        loss_type=loss_type,
        importance_sampling_level=level,
        beta=beta,
        delta=delta,
        importance_sampling_cap=cap,
        max_completion_length=7,
        **({"epsilon_high": 1.2} if loss_type == "cispo" else {}),
    )
    compare(config)


def compare(config: GRPOConfig) -> None:
    for seed in range(3):
        data = batch(seed)
        expected, found = trl_loss(config, data), ours(config, data)
        assert found.item() == pytest.approx(expected.item(), abs=1e-6)
        given = (data["logp"], data["entropy"])
        for theirs, mine in zip(
            torch.autograd.grad(expected, given, allow_unused=True),
            torch.autograd.grad(found, given, allow_unused=True),
            strict=True,
        ):
            assert (theirs is None) == (mine is None)
            if theirs is not None and mine is not None:
                assert torch.allclose(mine * data["mask"], theirs * data["mask"], atol=1e-6)


@pytest.mark.parametrize("loss_type", TRL_LOSSES)
@pytest.mark.parametrize(
    "options",
    [
        {"importance_sampling_mode": "token_mask"},
        {"importance_sampling_mode": "token_mask", "importance_sampling_floor": 0.8, "importance_sampling_cap": None},
        {"importance_sampling_mode": "token_truncate", "importance_sampling_floor": 0.8},
        {"importance_sampling_mode": "sequence_truncate"},
        {"importance_sampling_mode": "sequence_mask", "importance_sampling_floor": 0.5},
        {"off_policy_mask_threshold": 0.05},
        {"entropy_coef": 0.1},
        {"top_entropy_quantile": 0.4},
        {"top_entropy_quantile": 0.4, "entropy_coef": 0.1, "beta": 0.1},
        {"beta": 0.1, "use_bias_correction_kl": True},
    ],
    ids=str,
)
def test_options_equal_trl(loss_type: Any, options: dict[str, Any]) -> None:
    compare(GRPOConfig(loss_type=loss_type, **{"epsilon_high": 1.2} if loss_type == "cispo" else {}, **options))


def by_hand(config: GRPOConfig, data: dict[str, torch.Tensor]) -> float:
    """The papers' formulas, token by token, in floats."""
    logp, old, sampled, reference = (data[name].tolist() for name in ("logp", "old", "sampled", "reference"))
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    low_w, high_w = config.importance_sampling_floor or 0.0, config.importance_sampling_cap or math.inf
    total = 0.0
    for i, n in enumerate(LENGTHS):
        advantage = data["advantages"][i].item()
        log_ratios = [logp[i][t] - old[i][t] for t in range(n)]
        gaps = [old[i][t] - sampled[i][t] for t in range(n)]
        sequence_loss = 0.0
        for t in range(n):
            by_sequence = config.importance_sampling_level == "sequence"
            ratio = math.exp(sum(log_ratios) / n if by_sequence else log_ratios[t])
            if config.loss_type == "cispo":
                gain = min(ratio, high) * advantage * logp[i][t]
            elif config.loss_type == "dppo":
                change = math.exp(logp[i][t]) - math.exp(old[i][t])
                out = change > config.dppo_mask_high if advantage > 0 else -change > config.dppo_mask_low
                gain = 0.0 if out else min(ratio, config.delta or math.inf) * advantage
            elif config.loss_type == "sapo":
                tau = config.sapo_temperature_pos if advantage > 0 else config.sapo_temperature_neg
                gain = 4 / tau / (1 + math.exp(-tau * (ratio - 1))) * advantage
            else:
                free = ratio if config.delta is None else min(ratio, config.delta)
                gain = min(free * advantage, max(1 - config.epsilon, min(ratio, 1 + high)) * advantage)
            if config.importance_sampling_cap is not None or config.importance_sampling_floor is not None:
                weight = math.exp(sum(gaps) if config.importance_sampling_mode.startswith("sequence") else gaps[t])
                inside = low_w <= weight <= high_w
                cut = max(low_w, min(weight, high_w))
                gain *= cut if config.importance_sampling_mode.endswith("truncate") else weight * inside
            apart = reference[i][t] - logp[i][t]
            sequence_loss += -gain + config.beta * (math.exp(apart) - apart - 1)
        if config.loss_type in ("grpo", "sapo"):
            total += sequence_loss / n / len(LENGTHS)
        elif config.loss_type == "dr_grpo":
            total += sequence_loss / len(LENGTHS) / config.max_completion_length
        else:
            total += sequence_loss / sum(LENGTHS)
    return total


@pytest.mark.parametrize(
    ("loss_type", "level"),
    [(name, level) for name in LOSSES for level in ("token", "sequence") if (name, level) != ("dppo", "sequence")],
)
@pytest.mark.parametrize(
    "options",
    [
        {"importance_sampling_cap": None},
        {"importance_sampling_cap": None, "delta": 1.5, "epsilon": 0.1},
        {"importance_sampling_cap": None, "beta": 0.1},
        {"importance_sampling_cap": 1.2},
        {"importance_sampling_cap": 1.2, "importance_sampling_floor": 0.8, "importance_sampling_mode": "token_mask"},
        {"importance_sampling_mode": "sequence_truncate", "beta": 0.3},
        {"importance_sampling_mode": "sequence_mask", "importance_sampling_floor": 0.6},
    ],
    ids=str,
)
def test_losses_equal_the_formulas_by_hand(loss_type: Any, level: Any, options: dict[str, Any]) -> None:
    high = {"epsilon_high": 1.2 if loss_type == "cispo" else 0.3, "dppo_mask_low": 0.05, "dppo_mask_high": 0.02}
    config = GRPOConfig(
        loss_type=loss_type, importance_sampling_level=level, max_completion_length=7, **high, **options
    )
    for seed in range(5):
        data = batch(seed)
        assert ours(config, data).item() == pytest.approx(by_hand(config, data), abs=1e-6)


def test_a_completion_far_beyond_a_mask_is_left_out_and_nothing_else() -> None:
    """Its weight is more than a float can hold."""
    config = GRPOConfig(importance_sampling_mode="sequence_mask")
    sampled = torch.tensor([-100.0, -1.0])
    given = Readouts(torch.full((2,), -1.0), sampled, torch.ones(2), torch.full((2,), 0.5), torch.tensor([0, 1]))
    result = grpo_loss(torch.full((2,), -1.0, requires_grad=True), given, config)
    assert result.importance_weight_R.tolist() == [0.0, 1.0]
    assert result.loss.item() == pytest.approx(-0.5)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_micro_batches_add_up_to_the_whole_batch(loss_type: Any) -> None:
    config, data = GRPOConfig(loss_type=loss_type), batch(1)
    parts = ours(config, data, slice(0, 1)) + ours(config, data, slice(1, 3))
    assert parts.item() == pytest.approx(ours(config, data).item(), abs=1e-12)


def test_by_trajectory_every_trajectory_weighs_the_same_however_many_calls_it_has() -> None:
    """Closed form, 1 / (3 trajectories · tokens of the trajectory): 20 tokens in ten calls, 5 in one, 1 in one."""
    lengths_S = torch.tensor([2] * 10 + [5, 1])
    trajectory_S = torch.tensor([7] * 10 + [3, 9])
    weight_S = by_trajectory(lengths_S, trajectory_S)
    assert weight_S.tolist() == pytest.approx([1 / 60] * 10 + [1 / 15, 1 / 3], abs=1e-15)
    totals = [float((weight_S * lengths_S)[trajectory_S == number].sum()) for number in (7, 3, 9)]
    assert totals == pytest.approx([1 / 3] * 3, abs=1e-15)


def test_on_policy_the_loss_is_the_mean_negative_advantage() -> None:
    """Closed form: ratio 1 and no correction leave −Σ share · advantage."""
    config = GRPOConfig(importance_sampling_cap=None)
    nan = torch.full((3,), float("nan"))
    given = Readouts(nan, nan, torch.tensor([2.0, -1.0, 0.5]), torch.full((3,), 1 / 3), torch.tensor([0, 1, 2]))
    assert grpo_loss(torch.tensor([-1.0, -2.0, -3.0]), given, config).loss.item() == pytest.approx(-0.5)


def test_cispo_caps_weights_and_keeps_every_gradient() -> None:
    """Closed form: −min(ratio, cap) · advantage · logp, and its gradient −min(ratio, cap) · advantage everywhere."""
    config = GRPOConfig(loss_type="cispo", epsilon_high=2.0, importance_sampling_cap=None)
    logp = torch.tensor([-1.0, -1.0, -2.0], requires_grad=True)
    advantage, share = torch.tensor([1.0, -1.0, 0.5]), torch.full((3,), 1 / 3)
    old = logp.detach() - torch.tensor([3.0, 0.5, 0.1]).log()  # ratios 3, 0.5, 0.1
    given = Readouts(old, torch.full((3,), float("nan")), advantage, share, torch.tensor([0, 0, 0]))
    result = grpo_loss(logp, given, config)
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-2.0 / 3, 0.5 / 3, -0.05 / 3])
    assert result.loss.item() == pytest.approx((2.0 - 0.5 + 0.1) / 3)
    assert result.high_R.tolist() == [1.0, 0.0, 0.0]


def test_dppo_leaves_out_what_moved_too_far_with_its_advantage_and_clips_nothing_else() -> None:
    """Closed form. Probabilities now and then: 0.5 of 0.2, twice, 0.1 of 0.5, twice, 0.01 of 0.0001, a hundredfold."""
    config = GRPOConfig(loss_type="dppo", dppo_mask_low=0.3, dppo_mask_high=0.2, importance_sampling_cap=None)
    now, then = (
        torch.tensor(values, dtype=torch.float64)
        for values in ([0.5, 0.5, 0.1, 0.1, 0.01], [0.2, 0.2, 0.5, 0.5, 0.0001])
    )
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    logp = now.log().requires_grad_()
    nan, share = torch.full((5,), float("nan")), torch.full((5,), 0.2)
    result = grpo_loss(logp, Readouts(then.log(), nan, advantage, share, torch.zeros(5, dtype=torch.long)), config)
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([0.0, 2.5 / 5, -0.2 / 5, 0.0, -100 / 5], rel=1e-6)
    assert (result.high_R.tolist(), result.low_R.tolist()) == ([1.0, 0, 0, 0, 0], [0, 0, 0, 1.0, 0])


def test_decoupled_clipping_is_around_the_step_and_its_weights_around_the_sampler() -> None:
    """Closed form: min(π₀/μ, 2) · min(r A, clip(r, 0.8, 1.2) A) with r = π/π₀, and its gradient where r is inside."""
    config = GRPOConfig(proximal_policy="step", epsilon=0.2, epsilon_high=0.2, importance_sampling_cap=2.0)
    sampler = torch.tensor([0.1, 0.4, 0.1], dtype=torch.float64)
    start = torch.tensor([0.15, 0.2, 0.4], dtype=torch.float64)
    logp = torch.tensor([0.165, 0.22, 0.6], dtype=torch.float64).log().requires_grad_()
    advantage, share = torch.tensor([1.0, -1.0, 1.0]), torch.full((3,), 1 / 3)
    readouts = Readouts(start.log(), sampler.log(), advantage, share, torch.zeros(3, dtype=torch.long))
    result = grpo_loss(logp, readouts, config)
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert result.loss.item() == pytest.approx(-(1.5 * 1.1 - 0.5 * 1.1 + 2.0 * 1.2) / 3)
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.5 * 1.1 / 3, 0.5 * 1.1 / 3, 0.0])


def test_settings_that_would_undo_a_trust_region_are_refused() -> None:
    with pytest.raises(ValueError, match="needs importance weights"):
        GRPOConfig(proximal_policy="step", importance_sampling_cap=None)
    with pytest.raises(ValueError, match="dppo compares the probabilities of tokens"):
        GRPOConfig(loss_type="dppo", importance_sampling_level="sequence")
    with pytest.raises(ValueError, match="around the sampler"):
        GRPOConfig(loss_type="dppo", proximal_policy="step")


def test_sapo_on_policy_has_the_gradient_of_the_plain_objective() -> None:
    """At ratio 1 the sigmoid's slope is 1 whatever its steepness."""
    config = GRPOConfig(loss_type="sapo", importance_sampling_cap=None, sapo_temperature_pos=3.0)
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    nan = torch.full((2,), float("nan"))
    given = Readouts(nan, nan, torch.tensor([2.0, -1.0]), torch.full((2,), 0.5), torch.tensor([0, 1]))
    grpo_loss(logp, given, config).loss.backward()  # type: ignore[no-untyped-call]
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.0, 0.5])


def test_the_cap_of_cispo_is_a_ratio() -> None:
    assert GRPOConfig(loss_type="cispo").epsilon_high == 5.0
    assert GRPOConfig().epsilon_high == 0.28
    assert GRPOConfig.model_validate(GRPOConfig(loss_type="cispo").model_dump()).epsilon_high == 5.0
    for wrong in (0.28, None):
        with pytest.raises(ValueError, match="cispo caps the ratio"):
            GRPOConfig(loss_type="cispo", epsilon_high=wrong)
