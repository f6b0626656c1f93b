"""Memory of the device that computes: how long rows are, how many of their layers are computed twice, and where a
model rests.

As many layers as must be are computed twice, so that the row fits into the memory that is free.

Checkpointing a layer keeps its input alone, and computes the layer again in the backward pass. Shapes: T tokens.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainer_server.process.files import write_atomic

log = logging.getLogger(__name__)

_SPARE = 0.85
"""Share of the free memory that a row may take: the allocator leaves gaps."""
_TOKENS = 256
"""Of the shorter row that is measured."""


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU that nobody uses: those of the driver, and those that torch holds without use."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + held


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Bytes for each token of a row.

    layer_bytes: of what one layer keeps for its backward pass. input_bytes: of the layer's input.
    """

    layer_bytes: float
    input_bytes: float

    @classmethod
    def find(cls, directory: Path | None, facts: Mapping[str, Any], measure: Callable[[], LayerMemory]) -> LayerMemory:
        """What another process has measured of the same model on such a device; otherwise it is measured, and kept.

        Args:
            directory: Where it is kept; None: nowhere.
            facts: What it depends on, as JSON has it.
            measure: Measures it.
        """
        if directory is None:
            return measure()
        text = json.dumps(facts, sort_keys=True)
        file = directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            memory = cls(float(kept["layer_bytes"]), float(kept["input_bytes"]))
            if kept["facts"] == json.loads(text) and memory.layer_bytes > 0:
                return memory
        except (OSError, ValueError, TypeError, KeyError):  # there is none, or it is damaged
            pass
        memory = measure()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_atomic(file, json.dumps({**asdict(memory), "facts": facts}))
        except OSError as error:  # the next process measures again
            log.warning("what a layer keeps of a token cannot be written to %s: %s", file, error.strerror)
        return memory

    @classmethod
    def measure(cls, forward: Callable[[int], torch.Tensor], layers: int) -> LayerMemory:
        """What a forward pass through all layers keeps: the difference between a row and one of twice its length.

        Args:
            forward: Computes (1, T, E) for a number of tokens, with gradients and without checkpointing.
            layers: How many there are.
        """
        bytes_by_length = []
        for tokens in (_TOKENS, 2 * _TOKENS):
            sizes: dict[int, int] = {}

            def keep(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
                storage = tensor.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                hidden_1TE = forward(tokens)
            bytes_by_length.append(sum(sizes.values()))
            input_bytes = hidden_1TE.shape[2] * hidden_1TE.element_size()
            del hidden_1TE
        return cls((bytes_by_length[1] - bytes_by_length[0]) / _TOKENS / layers, input_bytes)

    def layers_twice(self, tokens: int, layers: int, free: int) -> int:
        """Number of layers that a row computes twice: the fewest with which it fits into `free` bytes, or all.

        What a layer keeps exists once more while it is computed backwards.

        Args:
            tokens: Of the row.
            layers: Of the model.
            free: Bytes.
        """
        room = _SPARE * free / tokens
        if (layers + 1) * self.layer_bytes <= room:
            return 0
        if self.layer_bytes <= self.input_bytes:
            return layers
        lacking = (layers + 2) * self.layer_bytes - room
        return min(layers, max(1, math.ceil(lacking / (self.layer_bytes - self.input_bytes))))

    def row_tokens(self, layers: int, free: int) -> int:
        """Tokens of the longest row that fits into `free` bytes with no layer computed twice."""
        return int(_SPARE * free / ((layers + 1) * self.layer_bytes))


class HostWeights:
    """The frozen weights of a model in main memory, where they stay while the model is on a GPU.

    They never change: to make room on the GPU, its copies are let go.

    Args:
        model: With its weights in main memory, all of them frozen.
        device: The GPU, which copies the faster from pages that are pinned.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        is_gpu = device.type == "cuda"
        self._device = device
        self._weights = [(weight, weight.data.pin_memory() if is_gpu else weight.data) for weight in model.parameters()]
        self.rest()

    def wake(self) -> None:
        """Copies them to the device, without waiting for the copies."""
        for weight, host in self._weights:
            weight.data = host.to(self._device, non_blocking=True)

    def rest(self) -> None:
        """Lets go of the device's copies, and of what was made of them."""
        for weight, host in self._weights:
            weight.data = host
