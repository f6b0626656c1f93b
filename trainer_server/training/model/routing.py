"""Router replay: a mixture computes each token with the experts that the sampler chose for it.

Trainer and engine round differently, and where two experts are about as good a difference in the last bit chooses
another one: the token's hidden state is then another one too. With the sampler's experts the trainer computes the same
function as the engine. Their weights are still the trainer's: its own router's scores at these experts, normalised as
the model does, so that gradients are those of that function (arXiv:2510.11370).
Shapes: T tokens, L layers of the decoder, those without a mixture included, X experts, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainer_server.common.routed_experts import unpack_experts
from trainer_server.wire import Completion, TrainingError

Experts = npt.NDArray[np.int64]
"""(T, L, K): the numbers of the experts; -1: the router's own choice."""


def sampled_experts(completion: Completion) -> Experts | None:
    """The experts that the sampler chose for the tokens of prompt and answer but the last. None: it gave none.

    Raises:
        TrainingError: The ledger has something else there.
    """
    if completion.routed_experts is None:
        return None
    try:
        file = unpack_experts(completion.routed_experts)
    except ValueError as error:
        raise TrainingError(f"routed_experts of {completion.id}: {error}") from None
    tokens = len(completion.prompt_token_ids) + len(completion.token_ids)
    if file.shape[0] != tokens - 1:
        raise TrainingError(
            f"routed_experts of {completion.id} has {file.shape[0]} rows for {tokens} tokens, of which the last has "
            "none"
        )
    return np.frombuffer(file.values, dtype=f"<{file.dtype}").astype(np.int64).reshape(file.shape)


def _share_of_all(router: Any, logits_TX: torch.Tensor, experts_TK: torch.Tensor) -> torch.Tensor:
    weight_TK = logits_TX.softmax(-1, dtype=torch.float).gather(1, experts_TK)
    return weight_TK / weight_TK.sum(-1, keepdim=True) if getattr(router, "norm_topk_prob", True) else weight_TK


def _share_of_chosen(router: Any, logits_TX: torch.Tensor, experts_TK: torch.Tensor) -> torch.Tensor:
    return logits_TX.gather(1, experts_TK).softmax(-1)


def _sigmoid(router: Any, logits_TX: torch.Tensor, experts_TK: torch.Tensor) -> torch.Tensor:
    weight_TK = logits_TX.sigmoid().gather(1, experts_TK)
    if router.norm_topk_prob:
        weight_TK = weight_TK / (weight_TK.sum(-1, keepdim=True) + 1e-20)
    scale: float = router.routed_scaling_factor
    return weight_TK * scale


ROUTERS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "MixtralTopKRouter": _share_of_all,
    "Qwen2MoeTopKRouter": _share_of_all,
    "Qwen3MoeTopKRouter": _share_of_all,
    "Qwen3NextTopKRouter": _share_of_all,
    "Qwen3_5MoeTopKRouter": _share_of_all,
    "OlmoeTopKRouter": _share_of_all,
    "GptOssTopKRouter": _share_of_chosen,
    "DeepseekV3TopkRouter": _sigmoid,
    "Glm4MoeTopkRouter": _sigmoid,
}
"""Classes of routers in transformers, which return logits, weights and experts: how the weights of some experts follow
from the logits (T, X) of all."""


class Routers:
    """The routers of a decoder.

    Args:
        layers: Its layers.
    """

    def __init__(self, layers: list[torch.nn.Module]) -> None:
        self.layers = len(layers)
        self._by_layer: list[list[Any]] = [
            [part for part in layer.modules() if type(part).__name__ in ROUTERS] for layer in layers
        ]
        self._routers = [router for routers in self._by_layer for router in routers]
        for router in self._routers:
            router.replayed_TK = None
            router.forward = partial(_forward, router)

    @property
    def mixtures(self) -> int:
        """Layers whose experts can be replayed."""
        return len(self._routers)

    def tensor(self, experts_TLK: Experts, padding: int, device: torch.device) -> torch.Tensor:
        """What the layers of a pass get, (T + padding, L, K).

        Raises:
            TrainingError: The experts are those of another model.
        """
        kind = self._routers[0]
        expected = (self.layers, kind.top_k)
        if experts_TLK.shape[1:] != expected:
            raise TrainingError(
                f"the sampler's experts have {' × '.join(map(str, experts_TLK.shape[1:]))} numbers a token, and this "
                f"model has {self.layers} layers with {kind.top_k} experts a token: they are those of another model"
            )
        if experts_TLK.max(initial=0) >= kind.num_experts:
            raise TrainingError(
                f"the sampler chose expert {experts_TLK.max()}, and this model has {kind.num_experts}: its experts are "
                "those of another model"
            )
        padded = np.pad(experts_TLK, ((0, padding), (0, 0), (0, 0)), constant_values=-1)
        return torch.from_numpy(padded).to(device)

    @contextmanager
    def choose(self, at: int, experts_TK: torch.Tensor | None) -> Iterator[None]:
        """Within it the router of a layer chooses these experts. None: its own.

        Args:
            at: Number of the layer.
            experts_TK: The experts.
        """
        for router in self._by_layer[at]:
            router.replayed_TK = experts_TK
        try:
            yield
        finally:
            for router in self._by_layer[at]:
                router.replayed_TK = None


def _forward(router: Any, hidden_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kind: Any = type(router)
    logits_TX, weight_TK, own_TK = kind.forward(router, hidden_TE)
    if router.replayed_TK is None:
        return logits_TX, weight_TK, own_TK
    experts_TK = torch.where(router.replayed_TK < 0, own_TK, router.replayed_TK)
    return logits_TX, ROUTERS[kind.__name__](router, logits_TX, experts_TK).to(weight_TK.dtype), experts_TK
