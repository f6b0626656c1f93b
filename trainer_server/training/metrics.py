"""What a step saw at its read-outs, as figures, and whether they say that something is wrong."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from trainer_server.training.loss import LossResult
from trainer_server.training.ranks import Ranks
from trainer_server.wire import GRPOConfig, TrainingError

LOGP_GAP_ALARM = 0.1
"""Nats per token between trainer and engine on completions of the newest version, above which metrics carry an alarm;
bf16 on both sides gives 0.01 to 0.03."""

PERCENTILES = (1, 5, 50, 95, 99)

RATIO_ALARM = 10.0
"""A ratio of the 99th percentile above this says that the data is from another policy."""


class Seen:
    """Collects what the rows of this rank gave; figures are of all ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._values: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._surveyed = False

    def survey(self, gap_R: torch.Tensor) -> None:
        """What was seen on the whole batch before the weights moved, by all ranks together. gap_R: see `add`."""
        self._surveyed = True
        if self._ranks.first:
            self._compare(gap_R)

    def add(self, result: LossResult, gap_R: torch.Tensor, entropy_R: torch.Tensor) -> None:
        """gap_R: |trainer's − sampler's log-prob|, NaN where they need not agree; of no use after a survey."""
        found = {"ratio": result.ratio_R, "low": result.low_R, "high": result.high_R, "entropy": entropy_R,
                 "correction": result.correction_R}  # fmt: skip
        if result.kl_R is not None:
            found["kl"] = result.kl_R
        for name, values in found.items():
            self._values[name].append(values.detach().float())
        if not self._surveyed:
            self._compare(gap_R)

    def check_gap(self, config: GRPOConfig) -> None:
        """Raises TrainingError where trainer and engine cannot be of one policy."""
        gaps = self._values["gap"]
        total = torch.tensor([sum(float(one.sum()) for one in gaps), sum(map(len, gaps))], dtype=torch.float64)
        self._ranks.add(total)
        gap = float(total[0] / total[1]) if total[1] else 0.0
        if config.max_logp_gap is not None and not gap <= config.max_logp_gap:
            raise TrainingError(
                f"trainer and engine differ by {gap:.3f} nats per token on completions of the newest version "
                f"(max_logp_gap={config.max_logp_gap}): one of them has another adapter, temperature or template. No "
                "version was made"
            )

    def summary(self) -> dict[str, Any]:
        """Figures over all updates; `logp_gap` is from before the first."""
        seen = self._ranks.gather({name: torch.cat(values) for name, values in self._values.items() if values})
        mean = {name: float(values.mean()) for name, values in seen.items() if len(values)}
        ratio_R = seen["ratio"].sort().values
        return {
            "ratio_mean": mean["ratio"],
            "ratio_min": float(ratio_R[0]),
            "ratio_max": float(ratio_R[-1]),
            "ratio_percentiles": {f"p{q:02}": float(ratio_R[round(q / 100 * (len(ratio_R) - 1))]) for q in PERCENTILES},
            "clip_fraction": mean["low"] + mean["high"],
            "clip_fraction_low": mean["low"],
            "clip_fraction_high": mean["high"],
            "entropy": mean["entropy"],
            "logp_gap": mean.get("gap"),
            "correction_mean": mean["correction"],
            "masked_fraction": float((seen["correction"] == 0).float().mean()),
            **({"kl": mean["kl"]} if "kl" in mean else {}),
        }

    def _compare(self, gap_R: torch.Tensor) -> None:
        self._values["gap"].append(gap_R[~gap_R.isnan()])


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
