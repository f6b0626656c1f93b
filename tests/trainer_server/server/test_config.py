"""What a training request may say: TRL's names, and nothing that would not come back from a file."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from trainer_server.wire import Fork, GRPOConfig, PolicySpec, SFTConfig, StepRequest, version_number


@pytest.mark.parametrize(
    ("trl", "ours"),
    [
        ({"learning_rate": 1e-3}, {"lr": 1e-3}),
        ({"scale_rewards": True}, {"scale_rewards": "group"}),
        ({"scale_rewards": False}, {"scale_rewards": "none"}),
        ({"vllm_importance_sampling_correction": True}, {}),
        ({"vllm_importance_sampling_correction": False}, {"importance_sampling_cap": None}),
        (
            {"vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_max": 3.0,
             "vllm_importance_sampling_clip_min": 0.5},
            {"importance_sampling_mode": "sequence_mask", "importance_sampling_cap": 3.0,
             "importance_sampling_floor": 0.5},
        ),
    ],
)  # fmt: skip
def test_the_names_of_trl_are_taken(trl: dict[str, Any], ours: dict[str, Any]) -> None:
    assert GRPOConfig(**trl) == GRPOConfig(**ours)
    assert GRPOConfig.model_validate_json(GRPOConfig(**trl).model_dump_json()) == GRPOConfig(**ours)


def test_options_that_trl_has_are_called_as_there() -> None:
    from trl import GRPOConfig as Theirs

    shared = set(GRPOConfig.model_fields) & set(Theirs.__dataclass_fields__)
    assert {"loss_type", "beta", "epsilon", "epsilon_high", "delta", "num_iterations", "importance_sampling_level",
            "top_entropy_quantile", "mask_truncated_completions", "max_grad_norm", "warmup_steps",
            "entropy_coef", "off_policy_mask_threshold", "use_bias_correction_kl", "lr_scheduler_type",
            } <= shared  # fmt: skip


@pytest.mark.parametrize("config", [GRPOConfig, SFTConfig])
def test_a_learning_rate_is_given_once(config: Any) -> None:
    assert config(learning_rate=1e-3).lr == 1e-3
    with pytest.raises(ValidationError, match="learning_rate and lr are one value"):
        config(learning_rate=1e-3, lr=1e-3)


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("name", ["lr", "max_grad_norm", "entropy_coef", "epsilon_high"])
def test_numbers_are_finite(name: str, value: float) -> None:
    """JSON has no others: what was accepted could not be read again."""
    with pytest.raises(ValidationError, match="finite"):
        GRPOConfig(**{name: value})
    body = json.dumps({"groups": [{"scenario_id": "s", "trajectories": []}], "config": {name: value}})
    with pytest.raises(ValidationError, match="finite"):
        StepRequest.model_validate(json.loads(body))
    with pytest.raises(ValidationError, match="finite"):
        PolicySpec(name="p", alpha=value)


@pytest.mark.parametrize(
    ("kind", "values", "most"),
    [
        (GRPOConfig, {"num_iterations": 10**9}, "1000"),
        (GRPOConfig, {"num_minibatches": 10**9}, "10000"),
        (GRPOConfig, {"token_budget": 10**12}, "16777216"),
        (GRPOConfig, {"reference_version": int("9" * 300)}, "1000000000"),
        (SFTConfig, {"num_train_epochs": 10**9}, "10000"),
        (SFTConfig, {"per_device_train_batch_size": 10**9}, "100000"),
        (PolicySpec, {"name": "p", "seed": 10**30}, "4294967296"),
        (Fork, {"policy": "p", "version": int("9" * 300)}, "1000000000"),
        (StepRequest, {"groups": [{"scenario_id": "s", "trajectories": []}], "time_limit": 1e12}, "31622400"),
    ],
)
def test_numbers_that_no_trainer_would_come_to_the_end_of_are_refused(
    kind: Any, values: dict[str, Any], most: str
) -> None:
    with pytest.raises(ValidationError, match=f"less than (or equal to )?{most}"):
        kind(**values)


@pytest.mark.parametrize("text", ["07", "7.bak", "-1", "+1", "²", "٣", "1_0", " 1", "1\n", "", "9" * 300])
def test_a_version_is_named_by_a_plain_number(text: str) -> None:
    assert version_number(text) is None
    assert [version_number(number) for number in ("0", "7", "999999999")] == [0, 7, 999999999]
