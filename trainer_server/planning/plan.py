"""Memory plans of `art-langgraph plan`: which layout of engines and trainer fits which GPUs, and its command line."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from trainer_server.planning.model_shape import BF16, ModelShape
from trainer_server.process.hardware import checkpoint_above
from trainer_server.wire import ConfigError
from trainer_server.wire.policies import EXPERTS

GIB = 1 << 30
CONTEXT = 8192
"""Tokens of the longest prompt and answer together, unless others are named."""
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
MAX_REQUESTS = 512
"""Most requests at once that vLLM is started for. It captures a CUDA graph for each size of its batches up to that."""
REQUEST_TOKENS = 2048
"""Tokens of a request for which a plan counts how many the KV cache holds at once. vLLM lets the others wait."""
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
        in_4bit: Whether the trainer holds its weights in 4 bits. Such a trainer takes no turns, and is not divided.
        experts: Whether policies adapt the experts of a mixture, too.

    Raises:
        ConfigError: `experts` of a model that has none.
    """

    model: str
    shape: ModelShape
    gpus: int
    gpu_memory: float
    context: int = CONTEXT
    rank: int = 16
    policies: int = 1
    concurrency: int = 64
    in_4bit: bool = False
    experts: bool = False

    def __post_init__(self) -> None:
        if self.experts and self.shape.experts is None:
            raise ConfigError(f"--model {self.model} is no mixture of experts: plan it without them")

    @property
    def slots(self) -> int:
        """Adapter slots: one for each policy, one for a version that a rollout still uses, one for a new version."""
        return min(self.policies + 2, MAX_SLOTS)

    @property
    def targets(self) -> tuple[str, ...]:
        """What gets an adapter, as `targets` of a policy name it."""
        return (*self.shape.targets, EXPERTS) if self.experts else self.shape.targets

    @property
    def lora_parameters(self) -> int:
        """Parameters of the largest adapter."""
        return self.shape.lora_parameters(self.rank, experts=self.experts)

    @property
    def trainer_weight_bytes(self) -> float:
        """Bytes of the weights that the trainer holds."""
        return self.shape.weight_bytes_4bit if self.in_4bit else self.shape.weight_bytes


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
        whole: Whether the trainer has memory for a row of TOKEN_BUDGET tokens with no layer computed twice. Otherwise
            it has what a row needs at least, and takes longer for it.
    """

    workload: Workload
    engines: int
    tensor: int
    trainer: int
    turns: bool = False
    whole: bool = False

    @property
    def engine_items(self) -> list[Item]:
        """Memory that an engine needs on each of its GPUs, without the KV cache."""
        shape, workload = self.workload.shape, self.workload
        lora = workload.slots * workload.lora_parameters * BF16
        return [
            Item("weights", shape.weight_bytes / self.tensor / GIB, f"{_b(shape.parameters)} × 2 B / {self.tensor}"),
            Item("adapter slots", lora / GIB, f"{workload.slots} × {_b(workload.lora_parameters)} × 2 B"),
            Item("CUDA, graphs, a batch", ENGINE_OVERHEAD, "allowance"),
        ]

    @property
    def trainer_items(self) -> list[Item]:
        """Memory that the trainer needs on each of its GPUs. Several GPUs divide only the layers' weights (FSDP2)."""
        shape, workload, parts = self.workload.shape, self.workload, max(self.trainer, 1)
        short = TOKEN_BUDGET if self.whole else min(checkpoint_above(shape.layers, shape.hidden_size), TOKEN_BUDGET)
        row, plain = shape.activation_bytes(TOKEN_BUDGET), short * shape.kept_bytes_per_token
        which = f"{TOKEN_BUDGET:,} tokens, layers twice" if row > plain else f"{short:,} tokens, all kept"
        layers = BF16 * shape.layer_parameters
        weights = self.workload.trainer_weight_bytes - (layers - layers / parts)
        size = "½ B" if self.workload.in_4bit else "2 B"
        items = [
            Item("weights", weights / GIB, f"{_b(shape.parameters)} × {size}, layers / {parts}"),
            Item(
                "LoRA, gradients, AdamW",
                shape.trainer_state_bytes(workload.rank, experts=workload.experts) / GIB,
                f"{_b(workload.lora_parameters)} × 16 B",
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
        """Tokens that the caches of all engines hold together, with a recurrent state for each REQUEST_TOKENS of them.
        Prompts that share a prefix share its tokens."""
        shape = self.workload.shape
        each = shape.kv_bytes_per_token + shape.state_bytes / REQUEST_TOKENS
        return int(max(self.kv_gib, 0) * GIB * self.tensor / each) * self.engines

    @property
    def requests(self) -> int:
        """Requests at once for which each engine is started (`--max-num-seqs`)."""
        return max(min(self.kv_tokens // self.engines // REQUEST_TOKENS, MAX_REQUESTS), 1)

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
    def engine_flags(self) -> dict[str, str]:
        """Flags of each vLLM with their values, without its context."""
        flags = {"--gpu-memory-utilization": f"{self.utilization:.2f}", "--max-num-seqs": str(self.requests)}
        return {**flags, "--tensor-parallel-size": str(self.tensor)} if self.tensor > 1 else flags

    def spans(self, gpus: Sequence[str]) -> list[str]:
        """The GPUs of each engine, and at last those of the trainer: `0,1`.

        Args:
            gpus: The name of each GPU. The trainer has GPUs of its own.
        """
        ends = [*range(0, self.engines * self.tensor + 1, self.tensor), self.engines * self.tensor + self.trainer]
        return [",".join(gpus[start:end]) for start, end in pairwise(ends)]

    @property
    def shortage(self) -> str:
        """A sentence that says which part of a plan that does not fit is too large, and by how much."""
        workload = self.workload
        saving = (workload.shape.weight_bytes - workload.shape.weight_bytes_4bit) / GIB
        if self.trainer and not self.trainer_fits:
            return f"The trainer needs {self.trainer_gib:.1f} GiB a GPU; 4-bit weights would save {saving:.1f} in all."
        if not self.trainer_fits:
            return (
                f"The trainer needs {self.trainer_gib:.1f} GiB while the engine sleeps, which keeps {ENGINE_OVERHEAD} "
                "GiB; 4-bit weights cannot take turns."
            )
        if not self.trainer and not self.turns and self.kv_gib <= 0:
            together = self.trainer_gib + sum(item.gib for item in self.engine_items)
            return f"Both need {together:.1f} GiB before any KV cache; 4-bit weights would save {saving:.1f}."
        if self.kv_gib <= 0:
            return f"An engine lacks {-self.kv_gib:.1f} GiB a GPU for its weights, before any KV cache."
        return f"An engine's KV cache holds {self.kv_tokens // self.engines:,} tokens, less than one request."

    @property
    def command(self) -> str:
        """The shell command that serves this layout."""
        workload = self.workload
        flags = {"--max-model-len": str(workload.context), **self.engine_flags}
        adapted = ["--lora-target-modules", *workload.targets] if workload.experts else []
        vllm = shlex.join([*(word for flag in flags.items() for word in flag), *adapted])
        line = ["art-langgraph", "serve", "--model", workload.model]
        if self.trainer:
            *engines, trainer = self.spans([str(gpu) for gpu in range(workload.gpus)])
            for span in engines:
                line += ["--engine-gpus", span]
            line += ["--trainer-gpus", trainer]
        if self.turns:
            line += ["--share-gpu"]
        if self.trainer > 1:
            line += ["--trainer-processes", str(self.trainer), "--trainer-shard"]
        line += ["--adapter-slots", str(workload.slots), "--max-rank", str(workload.rank), "--engine-args", vllm]
        return shlex.join(line)


def make_plan(workload: Workload, *, turns: bool | None = None) -> Plan:
    """Chooses a layout.

    Args:
        workload: What is to run, and on which GPUs.
        turns: Whether engine and trainer take turns on one GPU. None: where they do not fit beside each other.

    Returns:
        The first layout that fits: that with the fewest GPUs for the trainer, then the fewest for each engine. If none
        fits, the layout that takes turns on one GPU, or the first layout on several GPUs. The trainer has memory for
        whole rows where that leaves the engines enough for the requests at the same time.
    """
    layouts = [plan for plan in _layouts(workload) if turns in (None, plan.turns)]
    plan = next((plan for plan in layouts if plan.fits), layouts[-1] if workload.gpus == 1 else layouts[0])
    whole = replace(plan, whole=True)
    has_room = whole.fits and whole.requests * whole.engines >= min(workload.concurrency, plan.requests * plan.engines)
    return whole if has_room else plan


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
        if not workload.in_4bit:
            yield Plan(workload, engines=1, tensor=1, trainer=0, turns=True)
        return
    for trainer in range(1, workload.gpus):
        for tensor in (1, 2, 4, 8, 16):
            engines = (workload.gpus - trainer) // tensor
            if engines and workload.shape.heads % tensor == 0:
                yield Plan(workload, engines, tensor, workload.gpus - engines * tensor)


def _b(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} G" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"
