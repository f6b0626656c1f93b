"""What fits on which GPUs, and the command that serves it: `art-langgraph plan`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainer_server.planning.model_shape import BF16, ModelShape, checkpoint_above

GIB = 1 << 30
TOKEN_BUDGET = 8192
"""Tokens of the trainer's longest row: GRPOConfig's default."""
ENGINE_OVERHEAD = 2.5
"""GiB of a GPU that vLLM takes for CUDA, its graphs and its largest batch. An allowance, not a measurement."""
TRAINER_OVERHEAD = 1.5
"""GiB of a GPU for CUDA and its libraries. An allowance."""
ALLOCATOR = 1.45
"""What a row takes at its peak, over what is kept for its backward pass: gradients on their way, and fragments.
Measured with SmolLM2-135M: 1.09 MB a token over 0.77."""
UTILIZATION = 0.9
"""Share of a GPU that may be planned for."""
MAX_SLOTS = 16
"""Adapter slots beyond which policies rather take turns: each costs memory and vLLM's time."""
_SIZES = (16, 24, 32, 40, 48, 64, 80, 96, 141, 192, 288)


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to run, and on what.

    Args:
        model: What `--model` names.
        shape: Its sizes.
        gpus: GPUs of the machine.
        gpu_memory: GiB of each GPU.
        context: Tokens of the longest prompt and answer together.
        rank: Largest LoRA rank.
        policies: Policies that are used at once.
        concurrency: Requests at once.
    """

    model: str
    shape: ModelShape
    gpus: int
    gpu_memory: float
    context: int = 8192
    rank: int = 16
    policies: int = 1
    concurrency: int = 64

    @property
    def slots(self) -> int:
        """A version of each policy, one that a rollout still holds, one that is coming."""
        return min(self.policies + 2, MAX_SLOTS)


@dataclass(frozen=True, slots=True)
class Item:
    """A line of the table: GiB on one GPU."""

    name: str
    gib: float
    how: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One layout. tensor: GPUs of an engine. trainer: GPUs of the trainer; 0: it shares the engine's, beside it, or by
    turns (`serve --share-gpu`)."""

    workload: Workload
    engines: int
    tensor: int
    trainer: int
    turns: bool = False

    @property
    def engine_items(self) -> list[Item]:
        """What an engine needs on each of its GPUs, without the KV cache."""
        shape, workload = self.workload.shape, self.workload
        lora = workload.slots * shape.lora_parameters(workload.rank) * BF16
        return [
            Item("weights", shape.weight_bytes / self.tensor / GIB, f"{_b(shape.parameters)} × 2 B / {self.tensor}"),
            Item("adapter slots", lora / GIB, f"{workload.slots} × {_b(shape.lora_parameters(workload.rank))} × 2 B"),
            Item("CUDA, graphs, a batch", ENGINE_OVERHEAD, "allowance"),
        ]

    @property
    def trainer_items(self) -> list[Item]:
        """What the trainer needs on each of its GPUs; several divide the layers' weights (FSDP2), and nothing else."""
        shape, rank, parts = self.workload.shape, self.workload.rank, max(self.trainer, 1)
        short = min(checkpoint_above(shape.layers, shape.hidden), TOKEN_BUDGET)
        row, plain = shape.activation_bytes(TOKEN_BUDGET), shape.activation_bytes(short)
        which = f"{TOKEN_BUDGET:,} tokens, layers twice" if row > plain else f"{short:,} tokens, all kept"
        layers = BF16 * shape.linear_parameters
        weights = shape.weight_bytes - layers + layers / parts
        items = [
            Item("weights", weights / GIB, f"{_b(shape.parameters)} × 2 B, layers / {parts}"),
            Item(
                "LoRA, gradients, AdamW",
                shape.trainer_state_bytes(rank) / GIB,
                f"{_b(shape.lora_parameters(rank))} × 16 B",
            ),
            Item("activations", ALLOCATOR * max(row, plain) / GIB, f"{which} × {ALLOCATOR}"),
            Item("logits", shape.head_bytes / GIB, "4 × 128 × vocabulary × 4 B"),
            Item("CUDA", TRAINER_OVERHEAD, "allowance"),
        ]
        if parts > 1:
            items.insert(1, Item("gathered layers", 2 * layers / shape.layers / GIB, "2 layers, whole"))
        return items

    @property
    def trainer_gib(self) -> float:
        return sum(item.gib for item in self.trainer_items)

    @property
    def utilization(self) -> float:
        """Share of a GPU that vLLM is given."""
        if self.trainer:
            return UTILIZATION
        beside = TRAINER_OVERHEAD if self.turns else self.trainer_gib
        return math.floor(100 * (UTILIZATION - beside / self.workload.gpu_memory)) / 100

    @property
    def kv_gib(self) -> float:
        """What is left for the KV cache on each GPU of an engine; negative: not even the weights fit."""
        return self.utilization * self.workload.gpu_memory - sum(item.gib for item in self.engine_items)

    @property
    def kv_tokens(self) -> int:
        """Tokens that all engines hold at once. Prompts that share a prefix share its tokens."""
        per_engine = max(self.kv_gib, 0) * GIB * self.tensor / self.workload.shape.kv_bytes_per_token
        return int(per_engine) * self.engines

    @property
    def main_memory_gib(self) -> float:
        """What rests in main memory while the other one has the GPU: the base model, of each."""
        return 2 * self.workload.shape.weight_bytes / GIB if self.turns else 0.0

    @property
    def trainer_fits(self) -> bool:
        """Whether a GPU holds the trainer: one of its own, or the engine's while that sleeps. Beside an engine it does:
        the engine gets what is left."""
        if not self.trainer and not self.turns:
            return True
        beside = ENGINE_OVERHEAD if self.turns else 0.0
        return self.trainer_gib + beside <= UTILIZATION * self.workload.gpu_memory

    @property
    def fits(self) -> bool:
        """Trainer and engine fit, and each engine holds one request of full length."""
        return self.trainer_fits and self.engines > 0 and self.kv_tokens >= self.engines * self.workload.context

    @property
    def command(self) -> str:
        """The command line that serves it."""
        workload = self.workload
        vllm = f"--max-model-len {workload.context} --gpu-memory-utilization {self.utilization:.2f}"
        if self.tensor > 1:
            vllm += f" --tensor-parallel-size {self.tensor}"
        line = ["art-langgraph", "serve", "--model", workload.model]
        if self.trainer:
            for at in range(0, self.engines * self.tensor, self.tensor):
                line += ["--engine-gpus", _span(at, self.tensor)]
            line += ["--trainer-gpus", _span(self.engines * self.tensor, self.trainer)]
        if self.turns:
            line += ["--share-gpu"]
        if self.trainer > 1:
            line += ["--trainer-processes", str(self.trainer), "--trainer-shard"]
        line += ["--adapter-slots", str(workload.slots), "--max-rank", str(workload.rank), "--engine-args", vllm]
        return shlex.join(line)


def make_plan(workload: Workload) -> Plan:
    """The layout with the fewest GPUs for the trainer and the fewest for each engine, or the one that fits nearly."""
    layouts = list(_layouts(workload))
    return next((plan for plan in layouts if plan.fits), layouts[-1] if workload.gpus == 1 else layouts[0])


def remedies(workload: Workload) -> list[str]:
    """What would make a workload that does not fit fit, nearest first."""
    found = []
    if more := next((n for n in range(workload.gpus + 1, 65) if make_plan(replace(workload, gpus=n)).fits), None):
        found.append(f"{more} GPUs of {workload.gpu_memory:g} GiB")
    if larger := next(
        (g for g in _SIZES if g > workload.gpu_memory and make_plan(replace(workload, gpu_memory=g)).fits), None
    ):
        found.append(f"{workload.gpus} of {larger} GiB")
    halves = (workload.context >> shift for shift in range(1, 6))
    if shorter := next((c for c in halves if c >= 1024 and make_plan(replace(workload, context=c)).fits), None):
        found.append(f"--context {shorter}")
    return found


def _layouts(workload: Workload) -> Iterator[Plan]:
    if workload.gpus == 1:
        yield Plan(workload, engines=1, tensor=1, trainer=0)
        yield Plan(workload, engines=1, tensor=1, trainer=0, turns=True)
        return
    for trainer in range(1, workload.gpus):
        for tensor in (1, 2, 4, 8, 16):
            engines = (workload.gpus - trainer) // tensor
            if engines and workload.shape.heads % tensor == 0:
                yield Plan(workload, engines, tensor, workload.gpus - engines * tensor)


def _span(start: int, count: int) -> str:
    return ",".join(str(gpu) for gpu in range(start, start + count))


def _b(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} G" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"
