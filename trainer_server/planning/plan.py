"""Memory plans of `art-langgraph plan`: which layout of engines and trainer fits which GPUs, and its command line."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainer_server.planning.model_shape import BF16, ModelShape
from trainer_server.training.model import checkpoint_above

GIB = 1 << 30
TOKEN_BUDGET = 8192
"""Tokens of the trainer's longest row: the default of GRPOConfig.token_budget."""
ENGINE_OVERHEAD = 2.5
"""GiB of a GPU that vLLM takes for CUDA, its graphs and its largest batch. An estimate, not a measurement."""
TRAINER_OVERHEAD = 1.5
"""GiB of a GPU that the trainer takes for CUDA and its libraries. An estimate."""
ALLOCATOR = 1.45
"""Peak memory of a row, as a multiple of its activations that are kept for the backward pass. The rest is gradients
and fragmentation. Measured with SmolLM2-135M: 1.09 MB a token at the peak, 0.77 MB kept."""
UTILIZATION = 0.9
"""Share of a GPU's memory that a plan may use."""
MAX_SLOTS = 16
"""Largest number of adapter slots in a plan: each costs memory and vLLM's time. More policies take turns."""
_SIZES = (16, 24, 32, 40, 48, 64, 80, 96, 141, 192, 288)
"""Memory sizes of common GPUs, GiB, which `remedies` tries."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to run, and on which GPUs.

    Args:
        model: The value of `--model`.
        shape: Sizes of the model.
        gpus: Number of GPUs of the machine.
        gpu_memory: GiB of each GPU.
        context: Tokens of the longest prompt and answer together.
        rank: Largest LoRA rank.
        policies: Policies that are used at the same time.
        concurrency: Requests at the same time.
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
        """Adapter slots: one for each policy, one for a version that a rollout still uses, one for a new version."""
        return min(self.policies + 2, MAX_SLOTS)


@dataclass(frozen=True, slots=True)
class Item:
    """One row of the printed table.

    Args:
        name: What needs the memory.
        gib: GiB on one GPU.
        how: How the number was calculated.
    """

    name: str
    gib: float
    how: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One layout of engines and trainer on GPUs, and the memory that it needs.

    Args:
        workload: What is to run.
        engines: Number of engines.
        tensor: GPUs of each engine (tensor parallelism).
        trainer: GPUs of the trainer; 0: it uses the engine's GPU.
        turns: Whether engine and trainer use the same GPU by turns (`serve --share-gpu`). With `trainer` 0 and no
            turns, both use it at the same time.
    """

    workload: Workload
    engines: int
    tensor: int
    trainer: int
    turns: bool = False

    @property
    def engine_items(self) -> list[Item]:
        """Memory that an engine needs on each of its GPUs, without the KV cache."""
        shape, workload = self.workload.shape, self.workload
        lora = workload.slots * shape.lora_parameters(workload.rank) * BF16
        return [
            Item("weights", shape.weight_bytes / self.tensor / GIB, f"{_b(shape.parameters)} × 2 B / {self.tensor}"),
            Item("adapter slots", lora / GIB, f"{workload.slots} × {_b(shape.lora_parameters(workload.rank))} × 2 B"),
            Item("CUDA, graphs, a batch", ENGINE_OVERHEAD, "allowance"),
        ]

    @property
    def trainer_items(self) -> list[Item]:
        """Memory that the trainer needs on each of its GPUs. Several GPUs divide only the layers' weights (FSDP2)."""
        shape, rank, parts = self.workload.shape, self.workload.rank, max(self.trainer, 1)
        short = min(checkpoint_above(shape.layers, shape.hidden_size), TOKEN_BUDGET)
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
        """GiB that the trainer needs on each of its GPUs."""
        return sum(item.gib for item in self.trainer_items)

    @property
    def utilization(self) -> float:
        """Share of a GPU's memory that vLLM may use, 0 to 1; negative if the trainer leaves nothing."""
        if self.trainer:
            return UTILIZATION
        beside = TRAINER_OVERHEAD if self.turns else self.trainer_gib
        return math.floor(100 * (UTILIZATION - beside / self.workload.gpu_memory)) / 100

    @property
    def kv_gib(self) -> float:
        """GiB that are left for the KV cache on each GPU of an engine; negative: not even the weights fit."""
        return self.utilization * self.workload.gpu_memory - sum(item.gib for item in self.engine_items)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV caches of all engines hold together. Prompts that share a prefix share its tokens."""
        per_engine = max(self.kv_gib, 0) * GIB * self.tensor / self.workload.shape.kv_bytes_per_token
        return int(per_engine) * self.engines

    @property
    def main_memory_gib(self) -> float:
        """GiB of main memory that turns need: the base model of the engine and that of the trainer; 0 without turns."""
        return 2 * self.workload.shape.weight_bytes / GIB if self.turns else 0.0

    @property
    def trainer_fits(self) -> bool:
        """Whether the trainer fits its own GPU, or the engine's GPU while the engine sleeps.

        A trainer that runs beside an engine always fits here: the engine gets the memory that is left.
        """
        if not self.trainer and not self.turns:
            return True
        beside = ENGINE_OVERHEAD if self.turns else 0.0
        return self.trainer_gib + beside <= UTILIZATION * self.workload.gpu_memory

    @property
    def fits(self) -> bool:
        """Whether trainer and engines fit, and each engine's KV cache holds at least one request of full length."""
        return self.trainer_fits and self.engines > 0 and self.kv_tokens >= self.engines * self.workload.context

    @property
    def command(self) -> str:
        """The shell command that serves this layout."""
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
    """Chooses a layout.

    Args:
        workload: What is to run, and on which GPUs.

    Returns:
        The first layout that fits: that with the fewest GPUs for the trainer, then the fewest for each engine. If none
        fits, the layout that takes turns on one GPU, or the first layout on several GPUs.
    """
    layouts = list(_layouts(workload))
    return next((plan for plan in layouts if plan.fits), layouts[-1] if workload.gpus == 1 else layouts[0])


def remedies(workload: Workload) -> list[str]:
    """Changes, each of which alone would make a workload fit.

    Args:
        workload: A workload that does not fit.

    Returns:
        Up to three phrases: more GPUs, larger GPUs, a shorter context. Empty if no tried change is enough.
    """
    changes = []
    if more := next((n for n in range(workload.gpus + 1, 65) if make_plan(replace(workload, gpus=n)).fits), None):
        changes.append(f"{more} GPUs of {workload.gpu_memory:g} GiB")
    if larger := next(
        (gib for gib in _SIZES if gib > workload.gpu_memory and make_plan(replace(workload, gpu_memory=gib)).fits),
        None,
    ):
        changes.append(f"{workload.gpus} of {larger} GiB")
    halves = (workload.context >> shift for shift in range(1, 6))
    if shorter := next((c for c in halves if c >= 1024 and make_plan(replace(workload, context=c)).fits), None):
        changes.append(f"--context {shorter}")
    return changes


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
