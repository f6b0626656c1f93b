"""What a step computed of each token, kept for people who look at a run. Nothing is trained by it.

Shapes: F sampled tokens of the batch, R read-outs of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer_server.ledger.step_tokens import CompletionInStep, LeftOut, StepTokens, round_values
from trainer_server.training.grpo.batch import Sample
from trainer_server.training.ranks import Ranks


class TokenTraces:
    """Keeps the first log-prob and entropy that this rank computed of each token. All ranks call `summary`.

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
        """Takes what all ranks have computed before the weights moved.

        Args:
            logp_F: Log-probs.
            entropy_F: Entropies.
            index: Of the tokens that were computed.
        """
        self._logp_F, self._entropy_F, self._whole = logp_F.clone(), entropy_F.clone(), True
        self._seen_F[index] = 1

    def add(self, index_R: torch.Tensor, logp_R: torch.Tensor, entropy_R: torch.Tensor) -> None:
        """Takes what one row gave. Later passes over the same tokens change nothing."""
        if self._whole:
            return
        new = self._seen_F[index_R] == 0
        index = index_R[new]
        self._logp_F[index], self._entropy_F[index] = logp_R.detach()[new].float(), entropy_R.detach()[new].float()
        self._seen_F[index] = 1

    def summary(self, samples: Sequence[Sample], left_out: Sequence[LeftOut]) -> StepTokens:
        """What is known of the tokens of all ranks.

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
            completions=[
                CompletionInStep(
                    trajectory=sample.trajectory_id,
                    completion=sample.completion.id,
                    advantage=sample.advantage,
                    trained=list(sample.trained_mask),
                    logprobs=round_values(logp.tolist()),
                    entropy=round_values(entropy.tolist()),
                )
                for sample, logp, entropy in parts
            ],
            left_out=list(left_out),
        )
