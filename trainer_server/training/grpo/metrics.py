"""What a step saw at its read-outs, as figures, and whether they say that something is wrong."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from trainer_server.training.grpo.loss import LossResult
from trainer_server.training.ranks import Ranks
from trainer_server.wire import GRPOConfig, TrainingError

LOGP_GAP_ALARM = 0.1
"""Nats per token between trainer and engine on completions of one version, above which metrics carry an alarm;
bf16 on both sides gives 0.01 to 0.02 on CPUs."""

PERCENTILES = (1, 5, 50, 95, 99)

RATIO_ALARM = 10.0
"""A ratio of the 99th percentile above this says that the data is from another policy."""


class Seen:
    """Collects what the rows of this rank gave; figures are of all ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._values: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._compared = False

    def compare(self, drift_F: torch.Tensor) -> None:
        """What was seen before the weights moved, by all ranks together. drift_F: see `add`."""
        self._compared = True
        if self._ranks.first:
            self._compare(drift_F)

    def add(self, result: LossResult, drift_R: torch.Tensor, entropy_R: torch.Tensor) -> None:
        """drift_R: the trainer's − the sampler's log-prob, NaN where they need not agree; of no use after `compare`."""
        found = {"ratio": result.ratio_R, "low": result.low_R, "high": result.high_R, "entropy": entropy_R,
                 "correction": result.correction_R}  # fmt: skip
        if result.kl_R is not None:
            found["kl"] = result.kl_R
        for name, values in found.items():
            self._values[name].append(values.detach().float())
        if not self._compared:
            self._compare(drift_R)

    def check_gap(self, config: GRPOConfig) -> None:
        """Raises TrainingError where trainer and engine cannot be of one policy."""
        drifts = self._values["drift"]
        total = torch.tensor(
            [sum(float(one.abs().sum()) for one in drifts), sum(map(len, drifts))], dtype=torch.float64
        )
        self._ranks.add(total)
        gap = float(total[0] / total[1]) if total[1] else 0.0
        if config.max_logp_gap is not None and not gap <= config.max_logp_gap:
            raise TrainingError(
                f"trainer and engine differ by {gap:.3f} nats per token on completions of the same version "
                f"(max_logp_gap={config.max_logp_gap}): one of them has another adapter, temperature or template. No "
                "version was made"
            )

    def summary(self) -> dict[str, Any]:
        """Figures over all updates; `logp_gap` is from before the first."""
        seen = self._ranks.gather({name: torch.cat(values) for name, values in self._values.items() if values})
        mean = {name: float(values.mean()) for name, values in seen.items() if len(values)}
        drift_F = seen.get("drift", torch.empty(0))
        return {
            "ratio_mean": mean["ratio"],
            "ratio_min": float(seen["ratio"].min()),
            "ratio_max": float(seen["ratio"].max()),
            "ratio_percentiles": _percentiles(seen["ratio"]),
            "clip_fraction": mean["low"] + mean["high"],
            "clip_fraction_low": mean["low"],
            "clip_fraction_high": mean["high"],
            "entropy": mean["entropy"],
            "logp_gap": float(drift_F.abs().mean()) if len(drift_F) else None,
            "sampler_ratio_mean": float(drift_F.exp().mean()) if len(drift_F) else None,
            "sampler_ratio_percentiles": _percentiles(drift_F.exp()) if len(drift_F) else None,
            "correction_mean": mean["correction"],
            "masked_fraction": float((seen["correction"] == 0).float().mean()),
            **({"kl": mean["kl"]} if "kl" in mean else {}),
        }

    def _compare(self, drift: torch.Tensor) -> None:
        self._values["drift"].append(drift[~drift.isnan()].double())


def _percentiles(values: torch.Tensor) -> dict[str, float]:
    ordered = values.sort().values
    return {f"p{q:02}": float(ordered[round(q / 100 * (len(ordered) - 1))]) for q in PERCENTILES}


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
