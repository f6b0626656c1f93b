"""The sides of benchmarks.train_step: each takes the same step on the same runs in its own way."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.steps.cases import Run
from trainer_server.training.grpo.loss import loss_named
from trainer_server.training.grpo.objective import Readouts, grpo_loss
from trainer_server.training.model.head import HeadLogprobs
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.precision import keep_fp32
from trainer_server.training.model.tree import Ints, pack
from trainer_server.wire import GRPOConfig, PolicySpec

SPEC = PolicySpec(name="bench")
CONFIG = GRPOConfig(token_budget=1_000_000, importance_sampling_cap=None)


def randomise(named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
    """The same LoRA on every side, B ≠ 0, so that no gradient is trivially zero."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, weight in sorted(named):
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)


def lora_of(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    found = [(name, weight) for name, weight in model.named_parameters() if "lora_" in name]
    return sorted((name.split("layers.")[1].rsplit(".", 2)[0] + name[-20:], weight) for name, weight in found)


def objective(logp_R: torch.Tensor, advantage_R: torch.Tensor, run_R: torch.Tensor, share: float) -> torch.Tensor:
    """grpo_loss on policy: old log-probs are the current ones."""
    nan_R = torch.full((len(logp_R),), float("nan"), device=logp_R.device)
    share_R = torch.full((len(logp_R),), share, device=logp_R.device)
    return grpo_loss(logp_R, Readouts(nan_R, nan_R, advantage_R, share_R, run_R), CONFIG).loss


def optimizer_of(weights: Sequence[torch.nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.0)


def finish(weights: Sequence[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_(weights, CONFIG.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def share_of(runs: Sequence[Run]) -> float:
    sampled = torch.tensor([sum(len(completion) for _, completion in run.calls) for run in runs])
    return float(loss_named(CONFIG.loss_type).token_weights(sampled, CONFIG)[0])


class Packed:
    """This project's step."""

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        self.model = PolicyModel(path, dtype=dtype)
        self.model.initialise(SPEC)
        self.weights = [weight for _, weight in self.model.parameters()]
        self.named = lora_of(self.model._base)
        self.optimizer = optimizer_of(self.weights)

    def gradients(self, runs: Sequence[Run], micro_batch: int) -> float:
        calls = [(prompt, completion, at) for at, run in enumerate(runs) for prompt, completion in run.calls]
        packing = pack([c[0] for c in calls], [c[1] for c in calls], budget=CONFIG.token_budget)
        run_S = torch.tensor([at for *_, at in calls])
        advantage_S = torch.tensor([runs[at].advantage for *_, at in calls])
        loss = 0.0
        self.model.checkpoint_above = micro_batch
        for row in packing.rows:
            source_R = torch.from_numpy(row.source_R)
            logp_R, _ = self.model.logprobs(row, torch.ones(len(source_R)))
            device = logp_R.device
            part = objective(logp_R, advantage_S[source_R].to(device), run_S[source_R].to(device), share_of(runs))
            part.backward()
            loss += part.item()
        return loss

    def step(self, runs: Sequence[Run], micro_batch: int) -> float:
        loss = self.gradients(runs, micro_batch)
        finish(self.weights, self.optimizer)
        return loss


class Padded:
    """Separate rows, padded on the right; attention is transformers' sdpa with its mask."""

    fused = True
    """Whether adapters are computed as this project does it, and not by PEFT."""

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        from trainer_server.training.model.lora import FusedLoRA

        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.base: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
        self.base.requires_grad_(False)
        if self.device == "cpu":
            keep_fp32(self.base)
        lora = LoraConfig(r=SPEC.rank, lora_alpha=int(SPEC.alpha), target_modules=list(SPEC.targets))
        peft = get_peft_model(self.base.to(self.device), lora)
        if self.fused:
            FusedLoRA(peft, "default")
        peft.train()
        self.named = lora_of(self.base)
        self.weights = [weight for _, weight in self.named]
        self.optimizer = optimizer_of(self.weights)

    def gradients(self, runs: Sequence[Run], micro_batch: int) -> float:
        rows = [(tokens, sampled, at) for at, run in enumerate(runs) for tokens, sampled in run.rows()]
        width = max(len(tokens) for tokens, *_ in rows) - 1
        size = max(1, micro_batch // width)
        loss = 0.0
        for start in range(0, len(rows), size):
            part = self._part(rows[start : start + size], runs)
            part.backward()
            loss += part.item()
        return loss

    def _part(self, rows: Sequence[tuple[Ints, Ints, int]], runs: Sequence[Run]) -> torch.Tensor:
        width = max(len(tokens) for tokens, *_ in rows)
        ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
        mask_BT = torch.zeros(len(rows), width, dtype=torch.long)
        sampled_BT = torch.zeros(len(rows), width, dtype=torch.bool)
        for at, (tokens, sampled, _) in enumerate(rows):
            ids_BT[at, : len(tokens)] = torch.from_numpy(tokens)
            mask_BT[at, : len(tokens)] = 1
            sampled_BT[at, : len(tokens)] = torch.from_numpy(sampled) == 1
        ids_BT, mask_BT, sampled_BT = (one.to(self.device) for one in (ids_BT, mask_BT, sampled_BT))
        hidden_BTE = self.base.get_decoder()(
            input_ids=ids_BT[:, :-1], attention_mask=mask_BT[:, :-1], use_cache=False
        ).last_hidden_state
        read_BT = sampled_BT[:, 1:]
        hidden_RE, target_R = hidden_BTE[read_BT], ids_BT[:, 1:][read_BT]
        weight = self.base.get_output_embeddings().weight
        logp_R, _ = HeadLogprobs.apply(hidden_RE, weight, target_R, torch.ones(len(target_R), device=self.device))
        run_B = torch.tensor([at for *_, at in rows], device=self.device)
        run_R = run_B[:, None].expand(read_BT.shape)[read_BT]
        advantage_S = torch.tensor([run.advantage for run in runs], device=self.device)
        return objective(logp_R, advantage_S[run_R], run_R, share_of(runs))

    step = Packed.step


class TRL:
    """trl.GRPOTrainer, its rows given instead of generated."""

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        import datasets
        from peft import LoraConfig
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from transformers import PreTrainedTokenizerFast
        from trl import GRPOConfig as Arguments
        from trl import GRPOTrainer

        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(WordLevel({"</s>": 0}, "</s>")), eos_token="</s>", pad_token="</s>"
        )
        self.scratch = tempfile.TemporaryDirectory()
        arguments = Arguments(
            output_dir=self.scratch.name, per_device_train_batch_size=2, num_generations=2, learning_rate=1e-4,
            model_init_kwargs={"dtype": dtype}, bf16=dtype is torch.bfloat16, gradient_checkpointing=False,
            loss_type="dapo", beta=0.0, report_to="none", use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        self.trainer: Any = GRPOTrainer(
            path, lambda completions, **_: [0.0] * len(completions), arguments,
            train_dataset=datasets.Dataset.from_list([{"prompt": "</s>"}] * 2), processing_class=tokenizer,
            peft_config=LoraConfig(
                r=SPEC.rank, lora_alpha=int(SPEC.alpha), target_modules=list(SPEC.targets), task_type="CAUSAL_LM"
            ),
        )  # fmt: skip
        self.trainer.model.train()
        self.trainer.create_optimizer()
        self.device = self.trainer.accelerator.device
        self.named = lora_of(self.trainer.model)
        self.weights = [weight for _, weight in self.named]
        self.optimizer = self.trainer.optimizer

    def gradients(self, runs: Sequence[Run], micro_batch: int) -> float:
        rows = [(tokens, sampled, run.advantage) for run in runs for tokens, sampled in run.rows()]
        width = max(len(tokens) for tokens, *_ in rows)
        size = max(1, micro_batch // width)
        items = torch.tensor(sum(int(sampled.sum()) for _, sampled, _ in rows))
        trainer, loss = self.trainer, 0.0
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = -(-len(rows) // size)
        for start in range(0, len(rows), size):
            inputs = {"num_items_in_batch": items, **self._inputs(rows[start : start + size])}
            part = trainer.compute_loss(trainer.model, {key: value.to(self.device) for key, value in inputs.items()})
            trainer.accelerator.backward(part)
            loss += part.item()
        return loss

    def _inputs(self, rows: Sequence[tuple[Ints, Ints, float]]) -> dict[str, torch.Tensor]:
        from trl.trainer.utils import pad

        starts = [int(sampled.argmax()) for _, sampled, _ in rows]
        cut = list(zip(rows, starts, strict=True))
        prompts = [torch.from_numpy(tokens[:start]) for (tokens, *_), start in cut]
        completions = [torch.from_numpy(tokens[start:]) for (tokens, *_), start in cut]
        tools = [torch.from_numpy(sampled[start:]) for (_, sampled, _), start in cut]
        return {
            "prompt_ids": pad(prompts, 0, "left"),
            "prompt_mask": pad([torch.ones_like(one) for one in prompts], 0, "left"),
            "completion_ids": pad(completions, 0, "right"),
            "completion_mask": pad([torch.ones_like(one) for one in completions], 0, "right"),
            "tool_mask": pad(tools, 0, "right"),
            "advantages": torch.tensor([advantage for *_, advantage in rows]),
        }

    step = Packed.step


MAKE: dict[str, type[Packed] | type[Padded] | type[TRL]] = {"packed": Packed, "padded": Padded, "trl": TRL}


def make(side: str, path: str, dtype: torch.dtype) -> Packed | Padded | TRL:
    found = MAKE[side](path, dtype)
    randomise(found.named)
    return found
