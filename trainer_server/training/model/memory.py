"""Memory of the device that computes: how many layers of a row are computed twice, and where a model rests.

As many layers as must be, so that the row fits into the memory that is free.

Checkpointing a layer keeps its input alone, and computes the layer again in the backward pass. Shapes: T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

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
