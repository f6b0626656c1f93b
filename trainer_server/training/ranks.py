"""The trainer as several processes: each computes its part of the rows of an update, and gradients are summed.

What is trained is small and is kept whole everywhere; after each update all ranks hold the same weights, and the first
of them writes. The frozen base model is whole everywhere too, or divided among the ranks (FSDP2), layer by layer.
Started by torchrun, or by `accelerate launch` with a configuration of its own, also one that says FSDP.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainer_server.training.model.tree import Row

TIMEOUT = timedelta(days=7)
"""Until a rank gives the others up: they wait between jobs, however long that is. Of a dead one they hear at once."""

_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class Ranks:
    """One of `count` processes. By itself a single process, for which everything here is a no-op."""

    def __init__(self, index: int = 0, count: int = 1, *, here: int = 1, sharded: bool = False) -> None:
        self.index, self.count = index, count
        self.here = here
        """How many of them run on this machine."""
        self.sharded = sharded
        """Whether the base model is divided, so that every forward pass needs all ranks."""

    @classmethod
    def join(cls, *, shard: bool = False) -> Ranks:
        """Joins those that the launcher has started with this process, as its environment says; alone without any.
        shard: divide the base model; accelerate's environment can say so too.

        The environment is cleared of it: libraries must not find it, and divide what is theirs as well.
        """
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count > 1:
            backend = "gloo"
            if torch.cuda.is_available():
                backend = "cpu:gloo,cuda:nccl"
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group(backend, timeout=TIMEOUT)
        sharded = count > 1 and (shard or os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("true", "1"))
        index, here = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        for name in _LAUNCHED:
            os.environ.pop(name, None)
        return cls(index, count, here=here, sharded=sharded)

    @property
    def first(self) -> bool:
        """Whether this one takes jobs and writes files."""
        return self.index == 0

    @property
    def label(self) -> str:
        """For its log."""
        return f"rank {self.index}: " if self.count > 1 else ""

    def leave(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()

    def tell(self, text: str | None) -> str | None:
        """What the first rank says, to all."""
        said = [text]
        if self.count > 1:
            dist.broadcast_object_list(said, src=0, device=torch.device("cpu"))
        return said[0]

    def mine(self, rows: Sequence[Row]) -> list[tuple[Row, bool]]:
        """The rows that this rank computes, about as many tokens as any other's, and whether they count: where every
        pass needs all ranks, a rank with fewer rows repeats one for nothing."""
        parts: list[list[Row]] = [[] for _ in range(self.count)]
        sizes = [0] * self.count
        for row in sorted(rows, key=lambda row: -len(row.tokens_T)) if self.count > 1 else rows:
            least = sizes.index(min(sizes))
            parts[least].append(row)
            sizes[least] += len(row.tokens_T)
        found = [(row, True) for row in parts[self.index]]
        if self.sharded and rows:
            shortest = min(rows, key=lambda row: len(row.tokens_T))
            found += [(shortest, False)] * (max(map(len, parts)) - len(found))
        return found

    def add(self, *tensors: torch.Tensor) -> None:
        """Sums tensors over all ranks, in place, in one transfer for each dtype and device."""
        if self.count == 1:
            return
        for kind in dict.fromkeys((one.dtype, one.device) for one in tensors):
            some = [one for one in tensors if (one.dtype, one.device) == kind]
            flat = torch.cat([one.detach().reshape(-1) for one in some])
            dist.all_reduce(flat)
            for one, part in zip(some, flat.split([one.numel() for one in some]), strict=True):
                one.detach().copy_(part.view_as(one))

    def add_gradients(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Sums gradients; a rank without rows has none."""
        if self.count == 1:
            return
        gradients = []
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            gradients.append(weight.grad)
        self.add(*gradients)

    def gather(self, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Values of all ranks, one after another; names that one has, all get."""
        if self.count == 1:
            return values
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, {name: one.cpu() for name, one in values.items()})
        names = dict.fromkeys(name for each in found for name in each)
        return {name: torch.cat([each[name] for each in found if name in each]) for name in names}


ALONE = Ranks()


def shard(layers: Iterable[torch.nn.Module]) -> None:
    """Divides the frozen weights of layers among the ranks. What is put into the layers later stays whole.

    A layer is whole for as long as it computes; each is a root to FSDP, which would leave roots gathered.
    """
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(layer, reshard_after_forward=True)
