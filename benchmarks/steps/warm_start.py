"""Warm starts: demonstrations of an agent with many tools, imitated on packed rows, in separate rows, and by TRL.

    python -m benchmarks.steps.warm_start [--batch-size 8 16] [--updates 3] [--json]        (15 minutes on two cores)

Demonstrations: `--rows` (64) runs of one agent. All begin with the same `--prefix` (1,500) tokens: its system prompt
and the schemas of its tools. Then each has a question, a tool call, the tool's result and an answer, of lengths that
differ. Call and answer are imitated. Token ids are random: no figure here depends on what they say.

Sides, each update of all of them in turn, in one process, after one update that is not counted:
    packed     this project's warm start
    separate   the same with each answer in a row of its own: nothing is shared
    trl        trl.SFTTrainer's loop, loss and LoRA (PEFT), a row for each demonstration, one at a time: it makes the
               logits of all tokens, which take 350 MB for each of these rows. Its preparation is not counted
    step       this project's training step on the same tokens, as if the policy had sampled call and answer

`tokens`: of the demonstrations of an update. `unique`: what the side computes of them. `unique_per_second` compares
warm start and step; `seconds_per_pass`, over all demonstrations, compares the warm starts. `ratio`: unique tokens per
second of packed over step, the least of all batch sizes. `--clock cpu` counts the process's own seconds, for a machine
that others use; take one thread then.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.steps.cases import completion
from benchmarks.steps.sides import SPEC
from trainer_server.common import Home
from trainer_server.engines.served_model import resolve
from trainer_server.jobs.demonstrations import Demonstrations, Row
from trainer_server.training.grpo.batch import Origin, gather_batch
from trainer_server.training.grpo.step import optimise
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.optimizer import make_optimizer
from trainer_server.training.sft.warm_start import warm_start
from trainer_server.wire import Completion, GroupRef, GRPOConfig, SFTConfig, TrajectoryRef

Clock = Callable[[], float]


def demonstrations(count: int, prefix: int, vocabulary: int) -> list[Row]:
    """Runs of one agent: a common prefix, then 150 to 350 tokens of their own, of which about a quarter is imitated."""
    rng = np.random.default_rng(0)

    def some(least: int, most: int) -> list[int]:
        return [int(token) for token in rng.integers(5, vocabulary, rng.integers(least, most + 1))]

    common = some(prefix, prefix)
    rows = []
    for _ in range(count):
        question, call, result, answer = some(30, 70), some(25, 50), some(80, 200), some(15, 30)
        ids = [*common, *question, *call, *result, *answer]
        begun = len(common) + len(question)
        rows.append(Row(ids=ids, loss_spans=[(begun, begun + len(call)), (len(ids) - len(answer), len(ids))]))
    return rows


class Separate(PolicyModel):
    """Computes each answer in a row of its own, by the same attention."""

    @property
    def share(self) -> bool:
        return False


class Packed:
    """This project's warm start."""

    def __init__(self, path: str, dtype: torch.dtype, model: type[PolicyModel] = PolicyModel) -> None:
        self.model = model(path, dtype=dtype)
        self.model.initialise(SPEC)

    def update(self, rows: Sequence[Row], clock: Clock) -> tuple[float, int]:
        """Seconds of one update, and tokens that it computed."""
        config = SFTConfig(per_device_train_batch_size=len(rows), num_train_epochs=1)
        started = clock()
        metrics = warm_start(self.model, Demonstrations(rows=list(rows), turns=2 * len(rows)), config)
        return clock() - started, metrics["tokens_unique"]


class Step(Packed):
    """This project's training step."""

    def update(self, rows: Sequence[Row], clock: Clock) -> tuple[float, int]:
        completions: dict[str, Completion] = {}
        runs = []
        for at, row in enumerate(rows):
            names = [f"{at}-{start}" for start, _ in row.loss_spans]
            for name, (start, stop) in zip(names, row.loss_spans, strict=True):
                completions[name] = completion(name, row.ids[:start], row.ids[start:stop])
            runs.append(TrajectoryRef(id=str(at), reward=float(at % 2), completions=names))
        config = GRPOConfig(max_logp_gap=None)
        started = clock()
        batch = gather_batch(
            [GroupRef(scenario_id="s", trajectories=runs)], completions, config,
            policy="p", version=0, origin=Origin("m", "t"),
        )  # fmt: skip
        optimizer = make_optimizer(self.model, config)
        metrics = optimise(self.model, optimizer, batch, config, lambda _: nullcontext(True), lambda: nullcontext(""))
        return clock() - started, metrics["tokens_unique"] + metrics["tokens_repeated"]


class TRL:
    """trl.SFTTrainer."""

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        self.dtype = dtype
        self.base: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)

    def update(self, rows: Sequence[Row], clock: Clock) -> tuple[float, int]:
        import datasets
        from peft import LoraConfig
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from transformers import PreTrainedTokenizerFast
        from trl import SFTConfig as Arguments
        from trl import SFTTrainer
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(WordLevel({"</s>": 0}, "</s>")), eos_token="</s>", pad_token="</s>"
        )
        examples = []
        for row in rows:
            labels = [-100] * len(row.ids)
            for start, stop in row.loss_spans:
                labels[start:stop] = row.ids[start:stop]
            examples.append({"input_ids": row.ids, "labels": labels})
        with tempfile.TemporaryDirectory() as scratch:
            arguments = Arguments(
                output_dir=scratch, per_device_train_batch_size=1, gradient_accumulation_steps=len(rows),
                num_train_epochs=1, report_to="none",
                bf16=self.dtype is torch.bfloat16, gradient_checkpointing=False, disable_tqdm=True, save_strategy="no",
                dataset_kwargs={"skip_prepare_dataset": True}, use_cpu=not torch.cuda.is_available(),
            )  # fmt: skip
            trainer: Any = SFTTrainer(
                self.base, arguments, data_collator=DataCollatorForLanguageModeling(pad_token_id=0),
                train_dataset=datasets.Dataset.from_list(examples), processing_class=tokenizer,
                peft_config=LoraConfig(
                    r=SPEC.rank, lora_alpha=int(SPEC.alpha), target_modules=list(SPEC.targets), task_type="CAUSAL_LM"
                ),
            )  # fmt: skip
            started = clock()
            trainer.train()
            seconds = clock() - started
            self.base = trainer.model.unload()
        return seconds, sum(len(row.ids) for row in rows)


MAKE: dict[str, Callable[[str, torch.dtype], Packed | TRL]] = {
    "packed": Packed,
    "separate": lambda path, dtype: Packed(path, dtype, Separate),
    "trl": TRL,
    "step": Step,
}


def measure(options: argparse.Namespace, sides: dict[str, Packed | TRL], rows: list[Row], size: int) -> dict[str, Any]:
    """What each side does with batches of this size."""
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    updates: dict[str, list[tuple[float, int]]] = {side: [] for side in sides}
    parts = [rows[at : at + size] for at in range(0, len(rows) - size + 1, size)][: options.updates]
    for part in parts:
        for side, computing in sides.items():
            updates[side].append(computing.update(part, clock))
            print(f"  {size} {side}: {updates[side][-1][0]:.1f} s", file=sys.stderr, flush=True)
    found = {}
    for side, done in updates.items():
        seconds, unique = statistics.median(seconds for seconds, _ in done), statistics.fmean(one for _, one in done)
        found[side] = {
            "unique": unique,
            "seconds": seconds,
            "repeats": [seconds for seconds, _ in done],
            "unique_per_second": unique / seconds,
            "seconds_per_pass": seconds * math.ceil(len(rows) / size),
        }
    return {"tokens": statistics.fmean(sum(len(row.ids) for row in part) for part in parts), "sides": found}


def report(options: argparse.Namespace, batches: dict[int, dict[str, Any]]) -> None:
    table = Table("batch", "tokens", "side", "computed", "seconds (updates)", "computed / s", "seconds of a pass")
    for size, batch in batches.items():
        for side, one in batch["sides"].items():
            table.add_row(
                str(size), f"{batch['tokens']:.0f}", side, f"{one['unique']:.0f}",
                f"{one['seconds']:.1f} ({min(one['repeats']):.1f}-{max(one['repeats']):.1f})",
                f"{one['unique_per_second']:.0f}", f"{one['seconds_per_pass']:.0f}",
            )  # fmt: skip
    Console(stderr=options.json, width=120).print(table)
    rates = [{side: one["unique_per_second"] for side, one in batch["sides"].items()} for batch in batches.values()]
    ratio = min((rate["packed"] / rate["step"] for rate in rates if {"packed", "step"} <= rate.keys()), default=None)
    if options.json:
        found = {str(size): batch for size, batch in batches.items()}
        print(json.dumps({"benchmark": "warm_start", "clock": options.clock, "batches": found, "ratio": ratio}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="demonstrations (64)")
    parser.add_argument("--prefix", type=int, default=1500, help="tokens that all of them begin with (1500)")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[8, 16], help="demonstrations of an update (8 16)")
    parser.add_argument("--updates", type=int, default=3, help="of each side and batch size; the median is taken (3)")
    parser.add_argument("--side", nargs="+", choices=MAKE, default=list(MAKE), help="sides to measure (all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--model", default="embedded", help="what --model of the server takes (embedded)")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--clock", default="wall", choices=("wall", "cpu"))
    parser.add_argument("--threads", type=int, default=0, help="of torch (its own choice)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    path = resolve(options.model, Home.find().cache, lambda line: print(line, file=sys.stderr)).path
    vocabulary = json.loads((Path(path) / "config.json").read_text())["vocab_size"]
    rows = demonstrations(options.rows, options.prefix, vocabulary)
    sides = {side: MAKE[side](path, getattr(torch, options.dtype)) for side in options.side}
    for computing in sides.values():
        computing.update(rows[:2], time.perf_counter)
    report(options, {size: measure(options, sides, rows, size) for size in options.batch_size})


if __name__ == "__main__":
    main()
