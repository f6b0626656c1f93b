"""Figures of a step at its read-outs, alarms where they are out of range, and traces of each token.

Shapes: R read-outs of a row, F sampled tokens of the batch. Log-probabilities and entropies are in nats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from trainer_server.ledger.step_tokens import LeftOut, StepTokens
from trainer_server.training.grpo.batch import Sample
from trainer_server.training.grpo.objective import LossResult
from trainer_server.training.ranks import Ranks
from trainer_server.wire import GRPOConfig, TrainingError

LOGP_GAP_ALARM = 0.1
"""Nats per token between trainer and engine on completions of one version, above which metrics carry an alarm;
bf16 on both sides gives 0.01 to 0.02 on CPUs."""

PERCENTILES = (1, 5, 50, 95, 99)

RATIO_ALARM = 10.0
"""Where the 99th percentile of the ratios is above this, the data is from another policy."""


class StepMetrics:
    """Collects figures of the rows of this rank. `check_gap` and `summary` are of all ranks, and need all of them."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._values: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._compared = False

    def compare(self, drift_F: torch.Tensor) -> None:
        """Takes the trainer's − the sampler's log-probs, measured before the weights moved by all ranks together.

        Args:
            drift_F: NaN where the two need not agree.
        """
        self._compared = True
        if self._ranks.first:
            self._add_drift(drift_F)

    def add(self, result: LossResult, drift_R: torch.Tensor, entropy_R: torch.Tensor) -> None:
        """Takes the figures of one row.

        Args:
            result: Of its loss.
            drift_R: The trainer's − the sampler's log-probs, NaN where they need not agree; ignored after `compare`.
            entropy_R: At its trained read-outs.
        """
        values = {
            "ratio": result.ratio_R,
            "low": result.low_R,
            "high": result.high_R,
            "entropy": entropy_R,
            "importance_weight": result.importance_weight_R,
        }
        if result.kl_R is not None:
            values["kl"] = result.kl_R
        if result.teacher_gap_R is not None:
            values["teacher_gap"] = result.teacher_gap_R[~result.teacher_gap_R.isnan()]
        for name, value_R in values.items():
            self._values[name].append(value_R.detach().float())
        if not self._compared:
            self._add_drift(drift_R)

    def check_gap(self, config: GRPOConfig) -> None:
        """Raises TrainingError where the mean |drift| is above `max_logp_gap`: trainer and sampler differ too much."""
        drifts = self._values["drift"]
        sum_and_count = torch.tensor(
            [sum(float(drift.abs().sum()) for drift in drifts), sum(map(len, drifts))], dtype=torch.float64
        )
        self._ranks.all_reduce(sum_and_count)
        gap = float(sum_and_count[0] / sum_and_count[1]) if sum_and_count[1] else 0.0
        if config.max_logp_gap is not None and not gap <= config.max_logp_gap:
            raise TrainingError(
                f"trainer and engine differ by {gap:.3f} nats per token on completions of the same version "
                f"(max_logp_gap={config.max_logp_gap}): one of them has another adapter, temperature or template. No "
                "version was made"
            )

    def summary(self) -> dict[str, Any]:
        """Figures over all updates; `logp_gap` and `sampler_ratio_*` are from before the first."""
        values = self._ranks.gather({name: torch.cat(parts) for name, parts in self._values.items() if parts})
        mean = {name: float(value.mean()) for name, value in values.items() if len(value)}
        drift_F = values.get("drift", torch.empty(0))
        return {
            "ratio_mean": mean["ratio"],
            "ratio_min": float(values["ratio"].min()),
            "ratio_max": float(values["ratio"].max()),
            "ratio_percentiles": _percentiles(values["ratio"]),
            "clip_fraction": mean["low"] + mean["high"],
            "clip_fraction_low": mean["low"],
            "clip_fraction_high": mean["high"],
            "entropy": mean["entropy"],
            "logp_gap": float(drift_F.abs().mean()) if len(drift_F) else None,
            "sampler_ratio_mean": float(drift_F.exp().mean()) if len(drift_F) else None,
            "sampler_ratio_percentiles": _percentiles(drift_F.exp()) if len(drift_F) else None,
            "importance_weight_mean": mean["importance_weight"],
            "masked_fraction": float((values["importance_weight"] == 0).float().mean()),
            **({"kl": mean["kl"]} if "kl" in mean else {}),
            **({"teacher_kl": mean["teacher_gap"]} if "teacher_gap" in mean else {}),
        }

    def _add_drift(self, drift: torch.Tensor) -> None:
        self._values["drift"].append(drift[~drift.isnan()].double())


def _percentiles(values: torch.Tensor) -> dict[str, float]:
    ascending = values.sort().values
    return {f"p{q:02}": float(ascending[round(q / 100 * (len(ascending) - 1))]) for q in PERCENTILES}


def alarms(metrics: dict[str, Any]) -> list[str]:
    """What a reader of `StepMetrics.summary` should look into, in words; usually nothing."""
    sentences = []
    if (metrics["logp_gap"] or 0.0) > LOGP_GAP_ALARM:
        sentences.append(
            f"trainer and engine differ by {metrics['logp_gap']:.3f} nats per token, {LOGP_GAP_ALARM} is much"
        )
    if metrics["ratio_percentiles"]["p99"] > RATIO_ALARM:
        sentences.append(
            f"1 % of the ratios are above {metrics['ratio_percentiles']['p99']:.1f}: the data is far off policy"
        )
    return sentences


class TokenTraces:
    """The first log-prob and entropy that this rank computed of each token, for people who look at a run. Nothing is
    trained by them. All ranks call `summary`.

    Args:
        count: F.
        ranks: The trainer processes.
    """

    def __init__(self, count: int, ranks: Ranks) -> None:
        self._ranks = ranks
        self._logp_F, self._entropy_F = torch.zeros(count), torch.zeros(count)
        self._seen_F = torch.zeros(count)
        self._whole = False

    def set_all(self, logp_F: torch.Tensor, entropy_F: torch.Tensor, index: torch.Tensor) -> None:
        """Takes the values that all ranks computed before the weights moved.

        Args:
            logp_F: Log-probs.
            entropy_F: Entropies.
            index: Of the tokens that were computed.
        """
        self._logp_F, self._entropy_F, self._whole = logp_F.clone(), entropy_F.clone(), True
        self._seen_F[index] = 1

    def add(self, index_R: torch.Tensor, logp_R: torch.Tensor, entropy_R: torch.Tensor) -> None:
        """Takes the values of one row. Later passes over the same tokens change nothing."""
        if self._whole:
            return
        new = self._seen_F[index_R] == 0
        index = index_R[new]
        self._logp_F[index], self._entropy_F[index] = logp_R.detach()[new].float(), entropy_R.detach()[new].float()
        self._seen_F[index] = 1

    def summary(self, samples: Sequence[Sample], left_out: Sequence[LeftOut]) -> StepTokens:
        """The values of the tokens of all ranks.

        Args:
            samples: Of the batch, in the order of its tokens.
            left_out: What the step does not train.
        """
        if not self._whole:
            self._ranks.all_reduce(self._logp_F, self._entropy_F, self._seen_F)
        unseen, times = self._seen_F == 0, self._seen_F.clamp(min=1)  # ranks may repeat a row
        logp_F = (self._logp_F / times).masked_fill(unseen, torch.nan)
        entropy_F = (self._entropy_F / times).masked_fill(unseen, torch.nan)
        lengths = [len(sample.completion.token_ids) for sample in samples]
        parts = zip(samples, logp_F.split(lengths), entropy_F.split(lengths), strict=True)
        return StepTokens(
            completions=[sample.in_step(logp.tolist(), entropy.tolist()) for sample, logp, entropy in parts],
            left_out=list(left_out),
        )
