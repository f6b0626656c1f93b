"""What the trainer does: exactness, steps, warm starts, and the tests that need a GPU."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.child import Rows
from benchmarks.gpu.parts import Options
from benchmarks.gpu.shapes import CASES, SHAPES, TINY_CASES, Groups, requests, save_model
from benchmarks.steps import sides
from benchmarks.steps.cases import Run
from benchmarks.train_step import synchronise
from trainer_server.jobs.demonstrations import Demonstrations
from trainer_server.jobs.demonstrations import Row as Demonstration
from trainer_server.training.grpo.batch import Origin, gather_batch
from trainer_server.training.grpo.step import optimise
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.speed import product_flops
from trainer_server.training.model.tree import Ints, pack
from trainer_server.training.optimizer import make_optimizer
from trainer_server.training.sft.warm_start import warm_start
from trainer_server.wire import GRPOConfig, PolicySpec, SFTConfig

SPEC = PolicySpec(name="bench", rank=16, alpha=32.0)
MICRO_BATCHES = (6144, 24_576, 98_304)
"""Tokens that padded rows are computed at once; the fastest counts."""
BUDGET = 32_768
"""Tokens of a packed row at most."""
STEPS = 4
"""Steps of a case; the first one compiles. Each has other lengths."""
MANY_GROUPS = {"0.6B": 16, "1.7B": 6, "4B": 4}
"""Groups of case M: what fits into the time."""


def seconds_of(work: Callable[[], Any]) -> float:
    synchronise()
    begin = time.perf_counter()
    work()
    synchronise()
    return time.perf_counter() - begin


def graph_count() -> int:
    """Graphs that torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"].get("unique_graphs", 0))


# ----------------------------------------------------------------------------------------------------- exactness


def exactness(options: Options, rows: Rows) -> None:
    """Packed rows against transformers and PEFT, each sequence alone, in fp32 and bf16."""
    from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen3Config

    torch.backends.cuda.matmul.allow_tf32 = False
    sizes: dict[str, Any] = {
        "vocab_size": 2048,
        "hidden_size": 64 if options.tiny else 512,
        "intermediate_size": 96 if options.tiny else 1024,
        "num_hidden_layers": 2 if options.tiny else 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16 if options.tiny else 64,
        "max_position_embeddings": 4096,
        "initializer_range": 0.06,
    }
    groups = TINY_CASES["M"] if options.tiny else Groups(2, 4, 300, 3, 60)
    for name, config in {
        "Llama": LlamaConfig(**sizes),
        "Qwen3": Qwen3Config(**sizes),
        "Mistral, window": MistralConfig(**sizes, sliding_window=100),
    }.items():
        path = options.scratch / f"exact-{name}"
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
        runs = [run for group in groups.runs(1, sizes["vocab_size"], 0.2) for run in group]
        truth = Stock(str(path), torch.float32, "eager").truth(runs)
        for dtype in (torch.float32, torch.bfloat16):
            rows.measure(name, partial(compare, str(path), dtype, runs, truth))
            gc.collect()


def compare(path: str, dtype: torch.dtype, runs: Sequence[Run], truth: Truth) -> dict[str, Any]:
    """How far packed rows are from what is true, and how far transformers and PEFT are."""
    packed = sides.Packed(path, dtype)
    sides.randomise(packed.named)
    ours, stock = packed_truth(packed, runs), Stock(path, dtype, "sdpa").truth(runs)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "rows_shared": packed.model.share,
        **ours.error(truth, ""),
        **stock.error(truth, "stock_"),
    }


class Truth:
    """Log-probs of all sampled tokens, and the gradient of a weighted sum of them."""

    def __init__(self, logp: torch.Tensor, gradient: torch.Tensor) -> None:
        self.logp, self.gradient = logp.double().cpu(), gradient.double().cpu()

    def error(self, other: Truth, prefix: str) -> dict[str, float]:
        """The largest difference of a log-prob, and the relative one of the gradient."""
        gradient = (self.gradient - other.gradient).norm() / other.gradient.norm()
        return {
            f"{prefix}logp_error": float((self.logp - other.logp).abs().max()),
            f"{prefix}gradient_error": float(gradient),
        }


def token_weights(count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(7))


def packed_truth(packed: sides.Packed, runs: Sequence[Run]) -> Truth:
    calls = [call for run in runs for call in run.calls]
    starts = [0]
    for _, answer in calls:
        starts.append(starts[-1] + len(answer))
    logp_F, weight_F = torch.zeros(starts[-1]), token_weights(starts[-1])
    for row in pack([prompt for prompt, _ in calls], [answer for _, answer in calls], budget=100_000).rows:
        logp_R, _ = packed.model.logprobs(row, torch.ones(len(row.target_R)))
        index_R = torch.tensor(starts)[torch.from_numpy(row.source_R)] + torch.from_numpy(row.offset_R)
        (logp_R * weight_F[index_R].to(logp_R.device)).sum().backward()  # type: ignore[no-untyped-call]
        logp_F[index_R] = logp_R.detach().cpu()
    gradient = torch.cat([weight.grad.flatten().float() for _, weight in packed.named if weight.grad is not None])
    return Truth(logp_F, gradient)


class Stock:
    """transformers and PEFT as they are."""

    def __init__(self, path: str, dtype: torch.dtype, attention: str) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        base: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=attention)
        lora = LoraConfig(r=sides.SPEC.rank, lora_alpha=int(sides.SPEC.alpha), target_modules=list(sides.SPEC.targets))
        self.model: Any = get_peft_model(base.to(self.device), lora)
        self.named = sides.lora_of(base)
        sides.randomise(self.named)

    def truth(self, runs: Sequence[Run]) -> Truth:
        """Of each call alone."""
        calls = [call for run in runs for call in run.calls]
        weight_F = token_weights(sum(len(answer) for _, answer in calls)).split([len(answer) for _, answer in calls])
        values = []
        for (prompt, answer), weight_T in zip(calls, weight_F, strict=True):
            logp_T = self._logp(prompt, answer)
            (logp_T * weight_T.to(self.device)).sum().backward()  # type: ignore[no-untyped-call]
            values.append(logp_T.detach())
        return Truth(torch.cat(values), torch.cat([weight.grad.flatten().float() for _, weight in self.named]))

    def _logp(self, prompt: Ints, answer: Ints) -> torch.Tensor:
        tokens_T = torch.from_numpy(np.concatenate([prompt, answer])).to(self.device)
        logits_TV = self.model(input_ids=tokens_T[None, :-1], use_cache=False).logits[0, len(prompt) - 1 :]
        logp_TV = logits_TV.float().log_softmax(1)
        return logp_TV.gather(1, tokens_T[len(prompt) :, None])[:, 0]


# --------------------------------------------------------------------------------------------------------- steps


class Trainee:
    """A policy with random weights, and its steps from completions to new weights."""

    def __init__(self, path: str) -> None:
        self.model = PolicyModel(path, dtype=torch.bfloat16)
        self.model.wake()
        self.model.initialise(SPEC)
        sides.randomise(list(self.model.parameters()))
        self.optimizer = make_optimizer(self.model, GRPOConfig())
        base = self.model._base
        text = base.config.get_text_config()
        layers = base.get_decoder().layers.named_parameters()
        self._layer_numbers = sum(
            weight.numel() for name, weight in layers if "lora_" not in name and weight.dim() == 2
        )
        self._head_numbers = base.get_output_embeddings().weight.numel()
        self._attention_numbers = text.num_attention_heads * text.head_dim * text.num_hidden_layers

    def step(self, groups: list[list[Run]], budget: int) -> dict[str, float]:
        """Seconds, tokens and operations of a step.

        Operations are those of layers, head and attention, forward and backward; what is computed twice counts once.

        Args:
            groups: Of runs.
            budget: Tokens of a row at most.
        """
        config = GRPOConfig(max_logp_gap=None, token_budget=budget)
        completions, refs = requests(groups)
        synchronise()
        begin = time.perf_counter()
        batch = gather_batch(refs, completions, config, policy="p", version=0, origin=Origin("m", "t"))
        metrics = optimise(
            self.model, self.optimizer, batch, config, lambda _: nullcontext(True), lambda: nullcontext("")
        )
        synchronise()
        seconds = time.perf_counter() - begin
        if "skipped" in metrics:
            raise RuntimeError(metrics["skipped"])
        calls = [call for runs in groups for run in runs for call in run.calls]
        rows = pack([prompt for prompt, _ in calls], [answer for _, answer in calls], budget=budget).rows
        tokens, read = (sum(len(getattr(row, name)) for row in rows) for name in ("tokens_T", "target_R"))
        pairs = sum(int((row.depth_T + 1).sum()) for row in rows)
        products = 4.0 * (self._layer_numbers * tokens + self._head_numbers * read)
        return {
            "seconds": seconds,
            "tokens": tokens,
            "rows": len(rows),
            "operations": products + 14.0 * self._attention_numbers * pairs,
        }


def step(options: Options, rows: Rows, size: str) -> None:
    """A step of the cases S, M and L: packed, in padded rows, and in padded rows with PEFT's own adapters."""
    shape = SHAPES["tiny" if options.tiny else size]
    path = save_model(shape, options.scratch / f"model-{'tiny' if options.tiny else size}", options.device)
    cases = TINY_CASES if options.tiny else {**CASES, "M": Groups(MANY_GROUPS[size], 8, 1500, 4, 150)}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peak = product_flops(device, torch.bfloat16, size=256 if options.tiny else 8192, repeats=8) / 1e12
    packed = packed_steps(rows, path, cases, shape.vocabulary, peak)
    gc.collect()
    if size == "4B" and not options.tiny:  # its padded rows take as long as all other parts
        return
    sides.SPEC = SPEC
    for name, kind in (("padded", sides.Padded), ("PEFT", PaddedPEFT)):
        side = kind(path, torch.bfloat16)
        sides.randomise(side.named)
        for case, seconds in packed.items():
            groups = cases[case].runs(0, shape.vocabulary)
            rows.measure(f"{case}, {name}", partial(padded_step, side, groups, seconds))
        del side
        gc.collect()


def packed_steps(rows: Rows, path: str, cases: Mapping[str, Groups], vocabulary: int, peak: float) -> dict[str, float]:
    """Measures the packed side, and returns the seconds of a step of each case."""
    began = time.monotonic()
    trainee = Trainee(path)
    synchronise()
    load = {"load_s": round(time.monotonic() - began, 2), "product_tflops": round(peak, 1)}
    rows.add("load", load)
    measured = {
        name: rows.measure(name, partial(packed_step, trainee, case, vocabulary, BUDGET, peak))
        for name, case in cases.items()
    }
    return {name: figures["seconds"] for name, figures in measured.items() if figures is not None}


def packed_step(trainee: Trainee, case: Groups, vocabulary: int, budget: int, peak: float) -> dict[str, Any]:
    """The first step of a case, steps of other lengths, and one on the tokens of the first."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    before = graph_count()
    first = trainee.step(case.runs(0, vocabulary), budget)
    compiled = graph_count()
    later = [trainee.step(case.runs(at, vocabulary, 0.5), budget) for at in range(1, STEPS)]
    again = trainee.step(case.runs(0, vocabulary), budget)
    rates = [done["operations"] / done["seconds"] / 1e12 for done in later]
    return {
        "tokens": again["tokens"],
        "first_s": round(first["seconds"], 3),
        "seconds": round(again["seconds"], 4),
        "tokens_per_s": round(statistics.median(done["tokens"] / done["seconds"] for done in later)),
        "mfu": round(statistics.median(rates) / peak, 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if torch.cuda.is_available() else None,
        "graphs": compiled - before,
        "graphs_later": graph_count() - compiled,
        **trainee.model.sharing,
    }


class PaddedPEFT(sides.Padded):
    """Padded rows whose adapters PEFT computes."""

    fused = False


def padded_step(side: sides.Padded, groups: list[list[Run]], packed: float) -> dict[str, Any]:
    """The same tokens in padded rows, at the best micro-batch.

    Args:
        side: That computes them.
        groups: All of a step. Two are measured: each takes as long as another one.
        packed: Seconds of the packed step.
    """
    few = groups[:2]
    runs = [run for group in few for run in group]
    by_size: dict[str, float | None] = {}
    for size in MICRO_BATCHES:
        work = partial(side.step, runs, size)
        try:
            work()
            by_size[str(size)] = round(min(seconds_of(work) for _ in range(2)), 4)
        except torch.OutOfMemoryError:
            by_size[str(size)] = None
            side.optimizer.zero_grad(set_to_none=True)
    best = min(seconds for seconds in by_size.values() if seconds is not None) * len(groups) / len(few)
    return {"seconds": round(best, 4), "by_micro_batch": by_size, "over_packed": round(best / packed, 2)}


# ------------------------------------------------------------------------------------------------------ the rest


def sft(options: Options, rows: Rows) -> None:
    """A warm start: tokens a second."""
    size = "tiny" if options.tiny else "0.6B"
    path = save_model(SHAPES[size], options.scratch / f"model-{size}", options.device)
    case = TINY_CASES["M"] if options.tiny else Groups(8, 4, 1500, 3, 120)
    demonstrations = []
    for runs in case.runs(0, SHAPES[size].vocabulary, 0.5):
        for run in runs:
            spans = [(len(prompt), len(prompt) + len(answer)) for prompt, answer in run.calls]
            prompt, answer = run.calls[-1]
            demonstrations.append(Demonstration(ids=[*prompt.tolist(), *answer.tolist()], loss_spans=spans))

    def work() -> dict[str, Any]:
        model = PolicyModel(path, dtype=torch.bfloat16)
        model.wake()
        model.initialise(SPEC)
        config = SFTConfig(per_device_train_batch_size=8, num_train_epochs=1)
        data = Demonstrations(rows=demonstrations, turns=len(demonstrations) * case.turns)
        warm_start(model, data, config)
        metrics: dict[str, Any] = {}
        seconds = seconds_of(lambda: metrics.update(warm_start(model, data, config)))
        tokens = sum(len(demonstration.ids) for demonstration in demonstrations)
        return {
            "seconds": round(seconds, 3),
            "tokens_per_s": round(tokens / seconds),
            "unique_tokens_per_s": round(metrics["tokens_unique"] / seconds),
            "updates": metrics["updates"],
        }

    rows.measure("0.6B" if not options.tiny else "tiny", work)


def tests(options: Options, rows: Rows) -> None:
    """The tests that are skipped where there is no GPU."""
    rows.measure("attention", lambda: pytest_counts("tests/trainer_server/training/model/test_flex_gpu.py"))
    rows.measure("by turns", lambda: pytest_counts("tests/full/engines/test_share_gpu.py"))


def bits(options: Options, rows: Rows) -> None:
    """Base models in 4 and 8 bits, where bitsandbytes is installed."""
    rows.measure(
        "bitsandbytes",
        lambda: pytest_counts("tests/trainer_server/training/model/test_policy.py", "-k", "fewer_bits", "-rs"),
    )


def pytest_counts(*arguments: str) -> dict[str, Any]:
    """The last line of pytest, and what failed or was skipped.

    Raises:
        RuntimeError: A test failed.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    if done.returncode:
        raise RuntimeError("; ".join(lines[-12:]))
    return {"outcome": lines[-1], "skipped": [line for line in lines if line.startswith("SKIPPED")]}
