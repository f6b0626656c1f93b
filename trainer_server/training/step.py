"""One optimizer step, top to bottom: batch → prefix tree → log-probs → loss → gradients → new weights.

Old log-probabilities. A completion of the version that is being trained has ratio 1, whoever computed its log-probs;
what lies between vLLM's and the trainer's arithmetic is corrected by truncated importance sampling. A completion of an
older version has the sampler's log-probs as its old ones. Completions sampled under a constraint have log-probs that
are not the policy's; theirs are recomputed under the version that sampled them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from trainer_server.training.batch import Batch, Sample
from trainer_server.training.loss import Readouts, grpo_loss, shares
from trainer_server.training.policy import PolicyModel
from trainer_server.training.tree import Packing, Row, pack
from trainer_server.wire import GRPOConfig, TrainingError

Under = Callable[[int], AbstractContextManager[bool]]
"""Puts another version's weights in place for a while; gives False when that version is gone."""


def optimise(
    model: PolicyModel, optimizer: torch.optim.AdamW, batch: Batch, config: GRPOConfig, version: int, under: Under
) -> dict[str, Any]:
    """Takes one step in place on the weights of `version`; returns its metrics. Leaves weights alone on TrainingError.

    When nothing can be learnt, the metrics carry `skipped`, the reason, and nothing is changed.
    """
    started = time.monotonic()
    samples, old = _old_logps(model, batch, config, version, under)
    packing = _pack(model, samples, config)
    batch.completions_skipped.update({"too_long": len(packing.too_long)} if packing.too_long else {})
    kept = sorted({int(i) for row in packing.rows for i in row.source_R})
    metrics = {**batch.metrics(), "tokens_total": packing.total, "tokens_unique": packing.unique,
               "tokens_repeated": packing.repeated, "rows": len(packing.rows)}  # fmt: skip
    trained = torch.tensor([sum(samples[i].trained) for i in kept])
    metrics["tokens_trained"] = int(trained.sum())
    if not kept or not metrics["tokens_trained"]:
        return {**metrics, "skipped": _why(batch)}
    share_of = dict(zip(kept, shares(trained, config).tolist(), strict=True))
    reference = None
    if config.beta > 0:
        reference = _logps_under(model, packing, samples, config.reference_version, under)
        if reference is None:
            raise TrainingError(
                f"reference_version={config.reference_version}: the policy has no such version any more"
            )
    packed = time.monotonic()

    optimizer.zero_grad(set_to_none=True)
    totals: dict[str, list[torch.Tensor]] = {}
    loss = 0.0
    for index, row in enumerate(packing.rows):
        model.gradient_checkpointing(len(row.tokens_T) > model.checkpoint_above)
        logp_R, entropy_R = model.logprobs(row, _temperatures(row, samples))
        keep_R, given = _readouts(row, samples, old, share_of, version)
        if reference is not None:
            given.reference_logp_R = reference[index][keep_R]
        result = grpo_loss(logp_R[keep_R], given, config)
        result.loss.backward()  # type: ignore[no-untyped-call]
        loss += result.loss.item()
        gap_R = (logp_R.detach()[keep_R] - given.sampled_logp_R).abs()
        found = {"ratio": result.ratio_R, "clip": result.clipped_R, "gap": gap_R[~gap_R.isnan()],
                 "entropy": entropy_R[keep_R], "correction": result.correction_R}  # fmt: skip
        if result.kl_R is not None:
            found["kl"] = result.kl_R
        for name, values in found.items():
            totals.setdefault(name, []).append(values)
    weights = [weight for _, weight in model.parameters()]
    norm = float(torch.nn.utils.clip_grad_norm_(weights, config.max_grad_norm))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise TrainingError(f"the step's loss is {loss} and its gradient norm {norm}: no version was made")
    optimizer.step()

    merged = {name: torch.cat(values).float() for name, values in totals.items()}
    return {
        **metrics,
        "loss": loss,
        "grad_norm": norm,
        "ratio_mean": float(merged["ratio"].mean()),
        "ratio_max": float(merged["ratio"].max()),
        "clip_fraction": float(merged["clip"].mean()),
        "entropy": float(merged["entropy"].mean()),
        "logp_gap": float(merged["gap"].mean()) if len(merged["gap"]) else None,
        "correction_mean": float(merged["correction"].mean()),
        **({"kl": float(merged["kl"].mean())} if "kl" in merged else {}),
        "seconds": {"pack": packed - started, "compute": time.monotonic() - packed},
    }


def _pack(model: PolicyModel, samples: list[Sample], config: GRPOConfig) -> Packing:
    return pack(
        [np.array(sample.completion.prompt_token_ids) for sample in samples],
        [np.array(sample.completion.token_ids) for sample in samples],
        budget=config.token_budget,
        share=model.share,
    )


def _temperatures(row: Row, samples: list[Sample]) -> torch.Tensor:
    return torch.tensor([sample.completion.sampling.temperature for sample in samples])[torch.from_numpy(row.source_R)]


def _old_logps(
    model: PolicyModel, batch: Batch, config: GRPOConfig, version: int, under: Under
) -> tuple[list[Sample], dict[int, list[float]]]:
    """The samples that can be trained, and old log-probs for those whose sampling version is not the current one."""
    kept: list[Sample] = []
    old: dict[int, list[float]] = {}
    stale: dict[int, list[Sample]] = {}
    for sample in batch.samples:
        if sample.completion.version == version or not sample.constrained:
            if sample.completion.version != version:
                old[len(kept)] = sample.completion.logprobs
            kept.append(sample)
        else:
            stale.setdefault(sample.completion.version or 0, []).append(sample)
    for sampled_by, samples in stale.items():
        packing = _pack(model, samples, config)
        found = _logps_under(model, packing, samples, sampled_by, under)
        if found is None:
            batch.completions_skipped["version_gone"] += len(samples)
            continue
        by_sample: dict[int, list[float]] = {}
        for row, logp_R in zip(packing.rows, found, strict=True):
            for source, logp in zip(row.source_R.tolist(), logp_R.tolist(), strict=True):
                by_sample.setdefault(source, []).append(logp)  # read-outs of a completion are in order
        for source, logps in by_sample.items():
            old[len(kept)] = logps
            kept.append(samples[source])
    batch.samples = kept
    return kept, old


def _logps_under(
    model: PolicyModel, packing: Packing, samples: list[Sample], version: int, under: Under
) -> list[torch.Tensor] | None:
    """Log-probs of every row's read-outs under another version; None when that version is gone."""
    with under(version) as there, torch.no_grad():
        if not there:
            return None
        return [model.logprobs(row, _temperatures(row, samples))[0] for row in packing.rows]


def _readouts(
    row: Row, samples: list[Sample], old: dict[int, list[float]], share_of: dict[int, float], version: int
) -> tuple[torch.Tensor, Readouts]:
    """Which read-outs of a row are trained, and what the loss needs of them."""
    pairs = list(zip(row.source_R.tolist(), row.offset_R.tolist(), strict=True))
    keep = [at for at, (i, offset) in enumerate(pairs) if samples[i].trained[offset]]
    nan = math.nan

    def sampled(i: int, offset: int) -> float:
        sample = samples[i]
        plain = sample.completion.version == version and not sample.constrained
        return sample.completion.logprobs[offset] if plain else nan

    chosen = [pairs[at] for at in keep]
    return torch.tensor(keep, dtype=torch.long), Readouts(
        old_logp_R=torch.tensor([old[i][offset] if i in old else nan for i, offset in chosen]),
        sampled_logp_R=torch.tensor([sampled(i, offset) for i, offset in chosen]),
        advantage_R=torch.tensor([samples[i].advantage for i, _ in chosen]),
        share_R=torch.tensor([share_of[i] for i, _ in chosen]),
        completion_R=torch.tensor([i for i, _ in chosen]),
    )


def _why(batch: Batch) -> str:
    """Why there was nothing to learn, in words."""
    if batch.groups_skipped == batch.groups:
        return "every group has fewer than two rewarded trajectories or rewards that are all the same"
    reasons = ", ".join(f"{count} {reason}" for reason, count in batch.completions_skipped.items())
    return f"no completion can be trained: {reasons or 'the trajectories name none'}"
