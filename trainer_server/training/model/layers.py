"""The layers of a decoder: computed as they are or compiled, and some of them twice, which takes less memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from trainer_server.training.model.flex import compile_strict
from trainer_server.training.model.routing import Experts, Routers


class Layers:
    """Takes the place of the forward function of each layer.

    twice: how many layers, from the first, keep their input alone, and are computed again in the backward pass.
    """

    def __init__(self, decoder: torch.nn.Module) -> None:
        layers = [module for module in decoder.modules() if isinstance(module, GradientCheckpointingLayer)]
        self.count = len(layers)
        self.twice = 0
        self.routers = Routers(layers)
        self._experts_TLK: torch.Tensor | None = None
        self._run: Any = _run
        for at, layer in enumerate(layers):
            layer.forward = partial(self._forward, at, layer)  # type: ignore[method-assign]

    def compile(self) -> None:
        """One graph for each kind of layer, whatever the length of a row. The first pass compiles it."""
        self._run = compile_strict(_run)

    def leave_uncompiled(self) -> None:
        self._run = _run

    @contextmanager
    def replay(self, experts_TLK: Experts | None, padding: int, device: torch.device) -> Iterator[None]:
        """Within it the layers' routers choose these experts for the tokens of a pass, in its backward pass too.

        Args:
            experts_TLK: See `routing`; None: the routers choose.
            padding: How many tokens the pass has behind them.
            device: Of the layers.

        Raises:
            TrainingError: The experts are those of another model.
        """
        self._experts_TLK = None if experts_TLK is None else self.routers.tensor(experts_TLK, padding, device)
        try:
            yield
        finally:
            self._experts_TLK = None

    def _forward(self, at: int, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        experts_TK = None if self._experts_TLK is None else self._experts_TLK[:, at]
        if at < self.twice and torch.is_grad_enabled():
            return checkpoint(self._compute, at, experts_TK, layer, *args, use_reentrant=False, **kwargs)
        return self._compute(at, experts_TK, layer, *args, **kwargs)

    def _compute(
        self, at: int, experts_TK: torch.Tensor | None, layer: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        with self.routers.choose(at, experts_TK):
            return self._run(layer, *args, **kwargs)


def _run(layer: Any, *args: Any, **kwargs: Any) -> Any:
    return type(layer).forward(layer, *args, **kwargs)
