"""What a step saw at its read-outs, as figures, and whether they say that something is wrong."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from trainer_server.training.loss import LossResult
from trainer_server.wire import GRPOConfig, TrainingError

LOGP_GAP_ALARM = 0.1
"""Nats per token between trainer and engine on completions of the newest version, above which metrics carry an alarm;
bf16 on both sides gives 0.01 to 0.03."""

PERCENTILES = (1, 5, 50, 95, 99)

RATIO_ALARM = 10.0
"""A ratio of the 99th percentile above this says that the data is from another policy."""


class Seen:
    """Collects what rows gave; tensors stay where they are until `summary`."""

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor]] = defaultdict(list)
        self.surveyed = False
        """Whether sampler and trainer have been compared on the whole batch, before the weights moved."""

    def add(self, result: LossResult, entropy_R: torch.Tensor) -> None:
        found = {"ratio": result.ratio_R, "low": result.low_R, "high": result.high_R, "entropy": entropy_R,
                 "correction": result.correction_R}  # fmt: skip
        if result.kl_R is not None:
            found["kl"] = result.kl_R
        for name, values in found.items():
            self._values[name].append(values.detach().float())

    def compare(self, gap_R: torch.Tensor) -> None:
        """gap_R: |trainer's − sampler's log-prob|, NaN where they need not agree."""
        self._values["gap"].append(gap_R[~gap_R.isnan()])

    def check_gap(self, config: GRPOConfig) -> None:
        """Raises TrainingError where trainer and engine cannot be of one policy."""
        gap = self._mean("gap")
        if gap is not None and config.max_logp_gap is not None and not gap <= config.max_logp_gap:
            raise TrainingError(
                f"trainer and engine differ by {gap:.3f} nats per token on completions of the newest version "
                f"(max_logp_gap={config.max_logp_gap}): one of them has another adapter, temperature or template. No "
                "version was made"
            )

    def summary(self) -> dict[str, Any]:
        """Figures over all updates; `logp_gap` is from before the first."""
        ratio_R = torch.cat(self._values["ratio"]).sort().values
        low, high = self._mean("low") or 0.0, self._mean("high") or 0.0
        return {
            "ratio_mean": float(ratio_R.mean()),
            "ratio_min": float(ratio_R[0]),
            "ratio_max": float(ratio_R[-1]),
            "ratio_percentiles": {f"p{q:02}": float(ratio_R[round(q / 100 * (len(ratio_R) - 1))]) for q in PERCENTILES},
            "clip_fraction": low + high,
            "clip_fraction_low": low,
            "clip_fraction_high": high,
            "entropy": self._mean("entropy"),
            "logp_gap": self._mean("gap"),
            "correction_mean": self._mean("correction"),
            "masked_fraction": float((torch.cat(self._values["correction"]) == 0).float().mean()),
            **({"kl": kl} if (kl := self._mean("kl")) is not None else {}),
        }

    def _mean(self, name: str) -> float | None:
        found = torch.cat(self._values[name]) if self._values[name] else torch.empty(0)
        return float(found.mean()) if len(found) else None


def alarms(metrics: dict[str, Any]) -> list[str]:
    """What a reader of a summary should look into, in words; usually nothing."""
    found = []
    if (metrics["logp_gap"] or 0.0) > LOGP_GAP_ALARM:
        found.append(f"trainer and engine differ by {metrics['logp_gap']:.3f} nats per token, {LOGP_GAP_ALARM} is much")
    if metrics["ratio_percentiles"]["p99"] > RATIO_ALARM:
        found.append(
            f"1 % of the ratios are above {metrics['ratio_percentiles']['p99']:.1f}: the data is far off policy"
        )
    return found
