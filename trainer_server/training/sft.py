"""Warm start: trl.SFTTrainer on rows of token ids. It renders nothing, and could not: its tokenizer knows no word.

Loop, optimizer, schedule and loss are TRL's; log-probabilities come from the prefix tree, as in a step: what the
demonstrations of a batch have in common is computed once, and logits exist only at tokens that have a loss.

The optimizer lives as long as the job. Its moments belong to another loss and another learning rate: a policy-gradient
step that follows begins with fresh ones.

Shapes: T tokens of a padded row, R read-outs (tokens that have a loss) of a packed row.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer_server.jobs.demonstrations import Demonstrations, Row
from trainer_server.training.model import tree
from trainer_server.training.model.policy import PolicyModel
from trainer_server.wire import SFTConfig, TrainingError

IGNORED = -100
"""Label of a token that is context and has no loss."""

Progress = Callable[[int, int], None]
"""Called after each update, with the number of updates done and the number of all updates."""


def warm_start(
    model: PolicyModel,
    demonstrations: Demonstrations,
    config: SFTConfig,
    scratch: Path,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Trains the weights that are in place. On CPU, the same rows, weights and seed give the same bits.

    Args:
        model: The base model with the LoRA that is trained.
        demonstrations: Rows of token ids, and their spans that have a loss.
        config: TRL's names.
        scratch: A directory that TRL may write into; removed afterwards.
        progress: Called after each update.

    Returns:
        The metrics. When nothing can be imitated, they carry `skipped`, the reason, and no weight has changed.

    Raises:
        TrainingError: The loss or a weight is not finite afterwards.
    """
    started = time.monotonic()
    counts = {
        "rows": len(demonstrations.rows),
        "turns": demonstrations.turns,
        "tokens_total": sum(len(row.ids) for row in demonstrations.rows),
        "tokens_trained": sum(row.loss_tokens for row in demonstrations.rows),
        "turns_skipped": demonstrations.turns_skipped,
        "conversations_skipped": demonstrations.conversations_skipped,
        "trajectories_skipped": demonstrations.trajectories_skipped,
    }
    if not demonstrations.rows:
        return {**counts, "skipped": _why_nothing(demonstrations)}
    # Importing TRL takes seconds, and most trainers never need it.
    import datasets
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from trl.trainer.sft_config import SFTConfig as Arguments
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

    class TreeTrainer(SFTTrainer):  # type: ignore[misc]
        def compute_loss(
            self, _: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            """Mean negative log-probability of the update's tokens that have a loss (`num_items_in_batch` of them)."""
            logps = [model.logprobs(row, torch.ones(len(row.target_R)))[0] for row in _packed(inputs, model.share)]
            count = sum(map(len, logps)) if num_items_in_batch is None else num_items_in_batch
            return -sum(logp_R.sum() for logp_R in logps) / count

    class ReportProgress(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            progress(state.global_step, state.max_steps)

    arguments = Arguments(
        output_dir=str(scratch),
        **config.model_dump(exclude={"lr", "train_on", "min_reward"}),
        learning_rate=config.lr,
        optim="adamw_torch",
        dataset_kwargs={"skip_prepare_dataset": True},
        use_cpu=model.device.type == "cpu",
        bf16=False,  # the base model is in its own dtype already, under fp32 adapters: nothing to cast
        activation_checkpointing=False,
        logging_strategy="steps",
        logging_steps=1,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        push_to_hub=False,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # of the GPUs that this process sees, one is its own
    masters = [weight.detach().clone() for _, weight in model.parameters()]
    try:
        with model.as_peft() as peft:
            trainer = TreeTrainer(
                peft,
                arguments,
                data_collator=DataCollatorForLanguageModeling(pad_token_id=0),  # masked: any id would do
                train_dataset=datasets.Dataset.from_list([_example(row) for row in demonstrations.rows]),
                processing_class=transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({}, ""))),
                callbacks=[ReportProgress()],
            )
            trainer.remove_callback(transformers.PrinterCallback)
            for (_, weight), master in zip(model.parameters(), masters, strict=True):
                weight.data = master  # TRL makes adapters bf16 on a base model in fewer bits
            loaded = time.monotonic()
            trainer.train()
            history = [entry for entry in trainer.state.log_history if "loss" in entry]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    losses = [float(entry["loss"]) for entry in history]
    if not all(map(math.isfinite, losses)) or not all(w.isfinite().all() for _, w in model.parameters()):
        raise TrainingError(f"the loss went from {losses[0]} to {losses[-1]}: no version was made; try a smaller lr")
    return {
        **counts,
        "updates": len(losses),
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "grad_norm": float(history[-1]["grad_norm"]),
        "seconds": {
            "render": demonstrations.seconds,
            "prepare": loaded - started,
            "compute": time.monotonic() - loaded,
        },
    }


def _example(row: Row) -> dict[str, list[int]]:
    """A row as transformers' data collators take it."""
    labels = [IGNORED] * len(row.ids)
    for start, stop in row.loss_spans:
        labels[start:stop] = row.ids[start:stop]
    return {"input_ids": row.ids, "labels": labels}


def _packed(inputs: Any, share: bool) -> tuple[tree.Row, ...]:
    """The rows of a batch, padded on the right, as a prefix tree: one path for each span that has a loss."""
    prompts, answers = [], []
    for ids_T, labels_T in zip(inputs["input_ids"].cpu().numpy(), inputs["labels"].cpu().numpy(), strict=True):
        loss_T = np.concatenate([[False], labels_T != IGNORED, [False]])
        (starts,) = np.nonzero(loss_T[1:] & ~loss_T[:-1])
        (stops,) = np.nonzero(loss_T[:-1] & ~loss_T[1:])
        prompts += [ids_T[:start] for start in starts]
        answers += [ids_T[start:stop] for start, stop in zip(starts, stops, strict=True)]
    return tree.pack(prompts, answers, budget=inputs["input_ids"].numel(), share=share).rows


def _why_nothing(demonstrations: Demonstrations) -> str:
    """Why there was nothing to imitate, in words."""
    reasons = {
        **demonstrations.turns_skipped,
        **demonstrations.conversations_skipped,
        **demonstrations.trajectories_skipped,
    }
    return "nothing to imitate: " + (", ".join(f"{n} {reason}" for reason, n in reasons.items()) or "no answers")
