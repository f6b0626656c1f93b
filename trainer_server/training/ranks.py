"""The trainer as several processes: each computes its part of the rows of an update, and gradients are summed.

What is trained is small and is kept whole everywhere; after each update all ranks hold the same weights, and the first
of them writes. The frozen base model is whole everywhere too, or divided among the ranks (FSDP2), layer by layer.
Started by `launch.py` on one machine, or by `accelerate launch` with a configuration of its own, also one that says
FSDP, on several.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save

from trainer_server.training.launch import RENDEZVOUS
from trainer_server.training.model.tree import Row
from trainer_server.wire import ARTError, TrainingError

TIMEOUT = timedelta(hours=1)
"""How long a rank waits for another one within a step: as long as one rank may compute longer than another. Between
steps ranks wait in `next_order`, however long. A dead rank is noticed at once."""

_POLL = 0.02
"""Seconds between looks for an order."""

_LAUNCHER_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    RENDEZVOUS,
)


class RankLost(Exception):
    """Another rank is gone, or did not take part in time. No rank can go on: all begin again."""


class RankFailed(Exception):
    """This rank failed in the middle of what all do together. The job has failed, and all begin again."""


class Ranks:
    """This process as one of `count`. A single process is the default; everything here is a no-op for it.

    All methods raise RankLost when another rank is gone.
    """

    def __init__(
        self,
        index: int = 0,
        count: int = 1,
        *,
        local_count: int = 1,
        sharded: bool = False,
        store: Any = None,
    ) -> None:
        """store: torch's key-value store that the ranks share; None for a single process."""
        self.index, self.count = index, count
        self.local_count = local_count
        """How many of them run on this machine."""
        self.shards_model = sharded
        """Whether the base model is divided, so that every forward pass needs all ranks."""
        self._store = store
        self._orders = 0

    @classmethod
    def join(cls, *, shard: bool = False) -> Ranks:
        """Joins the processes that the launcher has started with this one, as its environment says; alone without any.

        The launcher's variables are removed from the environment: libraries that find them would divide their own
        models as well.

        Args:
            shard: Divide the base model among the ranks. accelerate's environment can ask for it too.
        """
        index, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        store = None
        if count > 1:
            backend = "gloo"
            if torch.cuda.is_available():
                backend = "cpu:gloo,cuda:nccl"
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            if rendezvous := os.environ.get(RENDEZVOUS):
                store = dist.FileStore(rendezvous, count)  # type: ignore[attr-defined]
            else:  # accelerate's launcher
                store, _, _ = next(dist.rendezvous("env://", index, count, timeout=TIMEOUT))  # type: ignore[attr-defined]
            group = dist.PrefixStore("group", store)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=group, rank=index, world_size=count, timeout=TIMEOUT)
        sharded = count > 1 and (shard or os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("true", "1"))
        local_count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        for name in _LAUNCHER_VARIABLES:
            os.environ.pop(name, None)
        return cls(index, count, local_count=local_count, sharded=sharded, store=store)

    @property
    def first(self) -> bool:
        """Whether this one takes jobs and writes files."""
        return self.index == 0

    @property
    def label(self) -> str:
        """Prefix of its log lines; empty for a single process."""
        return f"rank {self.index}: " if self.count > 1 else ""

    def leave(self) -> None:
        """Ends the process group."""
        if self.count > 1:
            dist.destroy_process_group()

    def order(self, text: str) -> None:
        """Tells the other ranks what to do next; the first rank calls it. Does not wait for them."""
        if self._store is not None:
            self._orders += 1
            with _together():
                self._store.set(f"order/{self._orders}", text)

    def next_order(self) -> str:
        """Waits for the first rank's next order, however long that takes: its launcher ends this process with it."""
        assert self._store is not None
        self._orders += 1
        name = f"order/{self._orders}"
        with _together():
            while not self._store.check([name]):
                time.sleep(_POLL)
            return str(self._store.get(name), "utf-8")

    def broadcast(self, text: str | None) -> str | None:
        """The text of the first rank, on all ranks; that of the others is ignored."""
        return json.loads(self._exchange(json.dumps(text).encode())[0])  # type: ignore[no-any-return]

    def agree(self, number: int) -> int:
        """The least of the numbers of all ranks."""
        return min(int(own) for own in self._exchange(str(number).encode()))

    @contextmanager
    def share_errors(self) -> Iterator[None]:
        """For what each rank does by itself before all go on together, such as reading files: an error of one rank is
        raised by all, so that none waits for another. All ranks enter the context at the same place.

        Raises:
            TrainingError: With several ranks, for the errors of any.
        """
        if self.count == 1:
            yield
            return
        own: Exception | None = None
        try:
            yield
        except RankLost:
            raise
        except Exception as error:  # of any kind: the other ranks wait for this one
            own = error
        reasons = [why.decode() for why in self._exchange((_error_text(own) if own else "").encode())]
        errors = {index: why for index, why in enumerate(reasons) if why}
        if len(errors) == self.count:
            raise TrainingError(errors[0]) from own
        if errors:
            index, why = next(iter(errors.items()))
            raise TrainingError(
                f"rank {index} of {self.count}: {why}. The policy stays at the version it had. All ranks need the same "
                "files of the server's home, its ledger, and room in memory: mend what that rank lacks, and send the "
                "job again under another idempotency key."
            ) from own

    @contextmanager
    def computing(self) -> Iterator[None]:
        """For the rows that each rank computes: an error of one rank is raised by all.

        Where the base model is divided, the others wait within the forward pass and cannot be told.

        Raises:
            TrainingError: As `share_errors`.
            RankFailed: The base model is divided, and this rank failed.
            RankLost: The base model is divided, and another rank may have failed.
        """
        if not self.shards_model:
            with self.share_errors():
                yield
            return
        try:
            yield
        except Exception as error:
            if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
                raise RankLost(f"a layer could not be computed: {error}") from error  # most likely of its transfer
            raise self._rank_failure(error) from error

    @contextmanager
    def step(self) -> Iterator[None]:
        """For all of a step. An ARTError is raised by all ranks. Any other error leaves the others waiting.

        Raises:
            RankFailed: With several ranks, for other errors of this rank.
        """
        try:
            yield
        except (ARTError, RankFailed, RankLost):
            raise
        except Exception as error:
            if self.count == 1:
                raise
            raise self._rank_failure(error) from error

    def _rank_failure(self, error: Exception) -> RankFailed:
        return RankFailed(
            f"rank {self.index} of {self.count}: {_error_text(error)}. The policy stays at the version it had, and the "
            "trainer starts again. Its log has more"
        )

    def shard_rows(self, rows: Sequence[Row]) -> list[tuple[Row, bool]]:
        """The rows that this rank computes, about as many tokens as any other's, and whether they count.

        Where every forward pass needs all ranks (`shards_model`), a rank with fewer rows repeats the shortest one,
        which does not count then.
        """
        parts: list[list[Row]] = [[] for _ in range(self.count)]
        sizes = [0] * self.count
        for row in sorted(rows, key=lambda row: -len(row.tokens_T)) if self.count > 1 else rows:
            least = sizes.index(min(sizes))
            parts[least].append(row)
            sizes[least] += len(row.tokens_T)
        own = [(row, True) for row in parts[self.index]]
        if self.shards_model and rows:
            shortest = min(rows, key=lambda row: len(row.tokens_T))
            own += [(shortest, False)] * (max(map(len, parts)) - len(own))
        return own

    def all_reduce(self, *tensors: torch.Tensor) -> None:
        """Sums tensors over all ranks, in place, in one transfer for each dtype and device."""
        if self.count == 1:
            return
        for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
            alike = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
            with _together():
                dist.all_reduce(flat)
            for tensor, part in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
                tensor.detach().copy_(part.view_as(tensor))

    def all_reduce_gradients(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Sums the gradients of these weights over all ranks; a rank without rows counts as zero."""
        if self.count == 1:
            return
        gradients = []
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            gradients.append(weight.grad)
        self.all_reduce(*gradients)

    def gather(self, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The values of all ranks, concatenated in their order; with every name that any rank has."""
        if self.count == 1:
            return values
        own = save({name: value.cpu().contiguous() for name, value in values.items()})
        by_rank = [load(part) for part in self._exchange(own)]
        names = dict.fromkeys(name for part in by_rank for name in part)
        return {name: torch.cat([part[name] for part in by_rank if name in part]) for name in names}

    def _exchange(self, own: bytes) -> list[bytes]:
        """What each rank gives, in their order. Bytes, as torch's functions for objects unpickle what they receive."""
        if self.count == 1:
            return [own]
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.count)]
        with _together():
            dist.all_gather(sizes, torch.tensor([len(own)]))
            longest = max(map(int, sizes))
            padded_bytes = torch.frombuffer(bytearray(own.ljust(longest + 1)), dtype=torch.uint8)
            part = [torch.empty_like(padded_bytes) for _ in range(self.count)]
            dist.all_gather(part, padded_bytes)
        return [data[: int(size)].numpy().tobytes() for data, size in zip(part, sizes, strict=True)]


ALONE = Ranks()


@contextmanager
def _together() -> Iterator[None]:
    """For what needs all ranks: torch raises RuntimeErrors when one is gone. Raises RankLost for them."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"another rank is gone, or took no part for {TIMEOUT}: {error}") from error


def _error_text(error: Exception) -> str:
    """An error in words. Those that are not written for users need their kind."""
    return str(error) if isinstance(error, ARTError | OSError) and str(error) else f"{type(error).__name__}: {error}"


def shard(layers: Iterable[torch.nn.Module]) -> None:
    """Divides the frozen weights of layers among the ranks. What is put into the layers later stays whole.

    A layer is whole for as long as it computes; each is a root to FSDP, which would leave roots gathered.
    """
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(layer, reshard_after_forward=True)
