"""One optimizer step on the same tokens and weights: the packed trainer, padded rows, and TRL's GRPOTrainer.

    python -m benchmarks.train_step [--case A B C D] [--repeats 5] [--json]
    python -m benchmarks.train_step --random-weights CONFIG_JSON      (a GPU; no weights needed)

Cases: [A] 8 completions of 64 tokens on one prompt of 512. [B] 8 agent runs, a prompt of 1,500 tokens with tools and
4 turns of 100. [C] 50 branches of 64 tokens on 512. [D] two groups of the quickstart: its prompts and tools through
the model's chat template, 8 runs of two calls each; what the agent says is written here, not sampled.

Sides, interleaved in one process, the median of `--repeats` after one that is not counted:
    packed    this project's step: PolicyModel.logprobs on the packed rows, grpo_loss, AdamW
    padded    the same with a row per run (turns that continue each other share it), padded on the right, transformers'
              own sdpa attention with its mask, logits at trained places only; the same LoRA code, head, dtype, loss
    trl       trl.GRPOTrainer's own loss, backward pass and optimizer on such rows, generation left out; its own LoRA
              (PEFT) and head; its gradient checkpointing, on by default, is off, which is faster
Padded rows go in micro-batches of `--micro-batch` tokens; a packed row of more has its layers checkpointed. All start
at the same weights, and the gradients of packed and padded are compared before anything is timed. Peak memory is
that of a process that does one side alone.

`limit`: tokens of all rows over unique tokens, what sharing alone can give; what the packed side's attention gains over
sdpa comes on top. `ratio`: smallest padded_ratio / limit of A-C.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from trainer_server.models import resolve
from trainer_server.training.head import HeadLogprobs
from trainer_server.training.loss import Readouts, grpo_loss, shares
from trainer_server.training.policy import PolicyModel
from trainer_server.training.tree import Ints, common_prefix, pack
from trainer_server.wire import GRPOConfig, Home, PolicySpec

SPEC = PolicySpec(name="bench")
CONFIG = GRPOConfig(token_budget=1_000_000, importance_sampling_cap=None)
CASES = ("A", "B", "C", "D")
SIDES = ("packed", "padded", "trl")
BAR = {"A": 0.75, "B": 0.70, "C": 0.75}


@dataclass(frozen=True, slots=True)
class Run:
    """One trajectory: its calls as (prompt ids, completion ids), and its advantage."""

    calls: tuple[tuple[Ints, Ints], ...]
    advantage: float

    def rows(self) -> list[tuple[Ints, Ints]]:
        """(tokens, 1 where a token was sampled); a call that continues the one before it shares its row."""
        rows: list[tuple[Ints, Ints]] = []
        for prompt, completion in self.calls:
            tokens = np.concatenate([prompt, completion])
            sampled = np.repeat([0, 1], [len(prompt), len(completion)])
            if rows and common_prefix(rows[-1][0], prompt) == len(rows[-1][0]):
                sampled[: len(rows[-1][1])] = rows[-1][1]
                rows.pop()
            rows.append((tokens, sampled))
        return rows


def case(name: str, path: str, vocabulary: int) -> list[Run]:
    """The runs of a case."""
    rng = np.random.default_rng(0)

    def some(n: int) -> Ints:
        return rng.integers(5, vocabulary, n)

    if name == "D":
        return quickstart(path)
    count, prompt, turns, turn = {"A": (8, 512, 1, 64), "B": (8, 1500, 4, 100), "C": (50, 512, 1, 64)}[name]
    shared, runs = some(prompt), []
    for _ in range(count):
        said = some(turns * turn)
        calls = [(np.concatenate([shared, said[: at * turn]]), said[at * turn :][:turn]) for at in range(turns)]
        runs.append(Run(tuple(calls), float(rng.normal())))
    return runs


def quickstart(path: str, groups: int = 2, size: int = 8) -> list[Run]:
    """Groups of the quickstart's training scenarios, rendered as its agent would ask."""
    from art_examples.quickstart.agent import PROMPT
    from art_examples.quickstart.scenarios import KINDS, training_scenarios
    from langchain_core.messages import convert_to_openai_messages
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    rng = random.Random(0)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": kind.tool, "parameters": schema}} for kind in KINDS]

    def ids(text: str) -> Ints:
        return np.array(tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt(messages: list[Any]) -> Ints:
        return ids(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True))

    runs = []
    for scenario in training_scenarios(0)[:groups]:
        city = scenario.metadata["arguments"]["city"]
        for _ in range(size):
            tool = rng.choice([scenario.metadata["tool"], rng.choice(KINDS).tool])
            asked = [*convert_to_openai_messages(PROMPT), {"role": "user", "content": scenario.input["messages"][0][1]}]
            called = {"id": "1", "type": "function", "function": {"name": tool, "arguments": {"city": city}}}
            result = next(kind.value(city) for kind in KINDS if kind.tool == tool)
            told = [*asked, {"role": "assistant", "content": "", "tool_calls": [called]},
                    {"role": "tool", "tool_call_id": "1", "content": result}]  # fmt: skip
            call = f'<tool_call>{{"name": "{tool}", "arguments": {{"city": "{city}"}}}}</tool_call><|im_end|>'
            answer = rng.choice(["It is {} in {}.", "{} in {}.", "The answer is {} for {}."]).format(result, city)
            calls = ((prompt(asked), ids(call)), (prompt(told), ids(f"{answer}<|im_end|>")))
            runs.append(Run(calls, rng.gauss(0, 1)))
    return runs


Step = Callable[[], float]
"""Forward, backward and optimizer; gives the loss."""


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
    return float(shares(sampled, CONFIG)[0])


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
        for row in packing.rows:
            self.model.gradient_checkpointing(len(row.tokens_T) > micro_batch)
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

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        from trainer_server.training.lora import use_fused_lora

        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.base: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
        self.base.requires_grad_(False)
        lora = LoraConfig(r=SPEC.rank, lora_alpha=int(SPEC.alpha), target_modules=list(SPEC.targets))
        peft = get_peft_model(self.base.to(self.device), lora)
        use_fused_lora(peft)
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


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory(options: argparse.Namespace, name: str, side: str) -> float:
    """GiB at the peak of a process that takes one step on one side: of the GPU, or resident without one."""
    command = [sys.executable, "-m", "benchmarks.train_step", "--case", name, "--measure-memory", side,
               "--model", options.path, "--dtype", options.dtype,
               "--micro-batch", str(options.micro_batch)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return float(done.stdout.strip().splitlines()[-1])


def measure_memory(options: argparse.Namespace, runs: Sequence[Run]) -> float:
    import resource

    side = make(options.measure_memory, options.path, getattr(torch, options.dtype))
    side.step(runs, options.micro_batch)
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def gradient_error(sides: dict[str, Any], runs: Sequence[Run], micro_batch: int) -> float:
    """Relative distance of the packed gradient from the padded one, at the same weights."""
    grads = []
    for name in ("packed", "padded"):
        sides[name].gradients(runs, micro_batch)
        grads.append(torch.cat([weight.grad.flatten().float() for _, weight in sides[name].named]))
        sides[name].optimizer.zero_grad(set_to_none=True)
    return float((grads[0] - grads[1]).norm() / grads[1].norm())


def measure(options: argparse.Namespace, name: str, sides: dict[str, Any], runs: list[Run]) -> dict[str, Any]:
    """Seconds, ratios, memory of one case."""
    calls = [call for run in runs for call in run.calls]
    packing = pack([c[0] for c in calls], [c[1] for c in calls], budget=CONFIG.token_budget)
    total = sum(len(tokens) - 1 for run in runs for tokens, _ in run.rows())
    times: dict[str, list[float]] = {side: [] for side in sides}
    for side in sides.values():
        randomise(side.named)
    error = gradient_error(sides, runs, options.micro_batch) if {"packed", "padded"} <= sides.keys() else None
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    for repeat in range(options.repeats + 1):
        for side, one in sides.items():
            synchronise()
            started = clock()
            one.step(runs, options.micro_batch)
            synchronise()
            times[side].append(clock() - started)
            print(f"  {name} {repeat} {side}: {times[side][-1]:.2f} s", file=sys.stderr, flush=True)
    seconds = {side: statistics.median(values[1:]) for side, values in times.items()}
    peak = {} if options.no_memory else {side: peak_memory(options, name, side) for side in sides}
    limit = total / packing.unique
    return {
        "tokens": total, "unique": packing.unique, "limit": limit, "gradient_error": error, "seconds": seconds,
        "repeats": {side: values[1:] for side, values in times.items()}, "peak_memory": peak,
        **{f"{side}_ratio": seconds[side] / seconds["packed"] for side in sides if side != "packed"},
    }  # fmt: skip


def flops_per_token(base: Any) -> float:
    """Forward and backward of a token through the frozen matrices: 2 + 2 operations a weight, without head and LoRA."""
    inner = base.get_decoder()
    return 4.0 * sum(weight.numel() for name, weight in inner.layers.named_parameters() if "lora_" not in name)


def random_weights(config: Path, where: Path) -> str:
    """A model of this config with random weights, saved under `where`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config), dtype=torch.bfloat16)
    model.save_pretrained(where / "model")
    return str(where / "model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES), help="sides to measure (all)")
    parser.add_argument("--repeats", type=int, default=5, help="counted repeats, of which the median is taken (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--model", default="embedded", help="what --model of the server takes (embedded)")
    parser.add_argument("--random-weights", type=Path, metavar="CONFIG", help="a config.json; case D is left out")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--micro-batch", type=int, default=6144, help="tokens computed at once (6144)")
    parser.add_argument(
        "--clock", default="wall", choices=("wall", "cpu"),
        help="cpu: the process's own seconds, for a machine that others use; take one thread then",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=0, help="of torch (its own choice)")
    parser.add_argument("--peak-tflops", type=float, help="of the device in this dtype: prints the share of it used")
    parser.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    parser.add_argument("--measure-memory", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        if options.random_weights:
            options.path = random_weights(options.random_weights, Path(scratch))
            options.case = [name for name in options.case if name != "D"]
        else:
            options.path = resolve(options.model, Home.find().cache, lambda line: print(line, file=sys.stderr)).path
        vocabulary = json.loads((Path(options.path) / "config.json").read_text())["vocab_size"]
        if options.measure_memory:
            print(measure_memory(options, case(options.case[0], options.path, vocabulary)))
            return
        sides = {side: make(side, options.path, getattr(torch, options.dtype)) for side in options.side}
        cases = {name: measure(options, name, sides, case(name, options.path, vocabulary)) for name in options.case}
        flops = flops_per_token(sides["packed"].model._base)
        report(options, cases, flops)


def report(options: argparse.Namespace, cases: dict[str, dict[str, Any]], flops: float) -> None:
    table = Table(
        "case", "tokens", "unique", "limit", "side", "seconds (repeats)", "ratio", "of limit", "GiB", "TFLOP/s"
    )
    for name, one in cases.items():
        for side, seconds in one["seconds"].items():
            repeats = one["repeats"][side]
            ratio = one.get(f"{side}_ratio")
            tokens = one["unique"] if side == "packed" else one["tokens"]
            used = flops * tokens / seconds / 1e12
            table.add_row(
                name, str(one["tokens"]), str(one["unique"]), f"{one['limit']:.2f}", side,
                f"{seconds:.2f} ({min(repeats):.2f}-{max(repeats):.2f})", f"{ratio:.2f}" if ratio else "",
                f"{ratio / one['limit']:.2f}" if ratio else "",
                f"{one['peak_memory'][side]:.2f}" if one["peak_memory"] else "",
                f"{used:.2f}" + (f" ({used / options.peak_tflops:.0%})" if options.peak_tflops else ""),
            )  # fmt: skip
    Console(stderr=options.json, width=140).print(table)
    shares_of_limit = [
        one["padded_ratio"] / one["limit"] for name, one in cases.items() if name in BAR and "padded_ratio" in one
    ]
    ratio = min(shares_of_limit, default=None)
    if options.json:
        print(json.dumps({"benchmark": "train_step", "cases": cases, "bar": BAR, "ratio": ratio}))


if __name__ == "__main__":
    main()
