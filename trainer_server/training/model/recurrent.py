"""Recurrent layers over a packed row: each branch of the tree begins with the state that its parent left.

A row is cut into segments at its branches. Segments of one level of the tree, and of about the same length, are one
padded batch, which begins with the states that the level above has left; padding changes no state. A short convolution
reads, before the first token of a segment, the last ones of its parent. Projections, gates and norms are computed for
the whole row at once: only what carries a state from token to token goes by segments.

transformers' mixers call such functions by name, and pass their own keyword arguments on to them. The functions of a
model's module are exchanged, see `FUNCTIONS`; without the keyword argument `segments` they compute as before. What they
wrap is torch's reference, or the kernel of flash-linear-attention, causal-conv1d or mamba-ssm where it is installed.
Shapes: T tokens of a row, or of the part that is computed; C channels; K taps; B segments of a batch, N tokens of a
segment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch

from trainer_server.training.model.tree import Ints, Row

LAYERS = frozenset(
    {
        "Qwen3NextGatedDeltaNet",
        "Qwen3_5GatedDeltaNet",
        "Qwen3_5MoeGatedDeltaNet",
        "Lfm2ShortConv",
        "Lfm2MoeShortConv",
        "NemotronHMamba2Mixer",
        "BambaMixer",
        "GraniteMoeHybridMambaLayer",
    }
)
"""Classes of layers whose states come from nothing but `FUNCTIONS`, and that were compared with the stock model."""
_CHUNK = 64
"""Tokens that a gated delta rule computes at once: shorter segments take as long."""
States = dict[tuple[int, str], torch.Tensor]
"""By layer and function: what the last token of a row's trunk has left, without a gradient."""
Step = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""(valid_BN, states or None, inputs (B, N, …) …) → outputs (B, N, …), states (B, …). Where a token is not valid, the
state must stay as it is."""


class Segments:
    """A row, or a part of it, as recurrent layers go through it: by pieces that no branch divides.

    Args:
        row: The row.
        device: Where it is computed.
        start: Token at which the part begins: all that comes before is an ancestor of it.
        stop: Token at which it ends; None: that of the row.
        before: What the tokens before the part have left; None: there are none.
        after: Where layers put what the last token of the part leaves; None: nowhere.
    """

    def __init__(
        self,
        row: Row,
        device: torch.device,
        *,
        start: int = 0,
        stop: int | None = None,
        before: States | None = None,
        after: States | None = None,
    ) -> None:
        self._device, self.before, self.after = device, before, after
        self._start, self._stop = start, len(row.tokens_T) if stop is None else stop
        self._runs = row.runs
        self._places_by_taps: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def count(self) -> int:
        """Tokens of the part."""
        return self._stop - self._start

    @cached_property
    def _parent_T(self) -> Ints:
        """For each token of the part the one before it on its path; those before the part are -1, -2, …"""
        parent_T = np.arange(self._stop) - 1
        for run in self._runs:
            if run.start < self._stop:
                depth = len(run.path_L) - (run.stop - run.start)
                parent_T[run.start] = run.path_L[depth - 1] if depth else -1
        return np.maximum(parent_T[self._start :] - self._start, -1)

    @cached_property
    def _edges(self) -> list[int]:
        """Where segments begin, and the end of the last."""
        begins = np.flatnonzero(self._parent_T != np.arange(self.count) - 1)
        return sorted({0, self.count, *begins.tolist(), *(self._parent_T[begins] + 1).tolist()})

    @cached_property
    def _batches(self) -> list[list[int]]:
        """Segments that are computed together, batch after batch."""
        levels: list[int] = []
        for start in self._edges[:-1]:
            parent = self._segment(int(self._parent_T[start]))
            levels.append(0 if parent < 0 else levels[parent] + 1)
        keys = [(level, (-(-self._length(at) // _CHUNK) - 1).bit_length()) for at, level in enumerate(levels)]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        return [list(alike) for _, alike in groupby(order, key=keys.__getitem__)]

    def _segment(self, token: int) -> int:
        """Which segment a token is in; -1: it lies before the part."""
        return int(np.searchsorted(self._edges, token, side="right")) - 1

    def _length(self, segment: int) -> int:
        return self._edges[segment + 1] - self._edges[segment]

    @cached_property
    def _places(self) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """The tokens of all batches one behind another; where each token of the part is among them; valid_BN of each
        batch. Padding repeats the last token of its segment."""
        tokens, valid = [], []
        for batch in self._batches:
            first_B1, length_B1 = (
                np.array([value(at) for at in batch])[:, None] for value in (self._edges.__getitem__, self._length)
            )
            at_N = np.arange(length_B1.max())
            tokens.append((first_B1 + np.minimum(at_N, length_B1 - 1)).ravel())
            valid.append(at_N < length_B1)
        place_T = np.empty(self.count, dtype=np.int64)
        token_M, is_token_M = np.concatenate(tokens), np.concatenate([valid_BN.ravel() for valid_BN in valid])
        place_T[token_M[is_token_M]] = np.flatnonzero(is_token_M)
        masks = [torch.from_numpy(valid_BN).to(self._device) for valid_BN in valid]
        return torch.from_numpy(token_M).to(self._device), torch.from_numpy(place_T).to(self._device), masks

    def scan(self, key: tuple[int, str], step: Step, *inputs: torch.Tensor) -> torch.Tensor:
        """The outputs of a recurrence, (1, T, …) as its inputs, which may have padding behind the part's tokens.

        Args:
            key: The layer's number and the function.
            step: The recurrence over a batch of segments.
            inputs: By token, (1, T, …) each.
        """
        token_M, place_T, masks = self._places
        batches = zip(*(self._by_batch(x[0].index_select(0, token_M), masks) for x in inputs), strict=True)
        states: dict[int, torch.Tensor] = {} if self.before is None else {-1: self.before[key][0]}
        outputs = []
        for segments, valid_BN, batch in zip(self._batches, masks, batches, strict=True):
            parents = [self._segment(int(self._parent_T[self._edges[at]])) for at in segments]
            initial = torch.stack([states[at] for at in parents]) if parents[0] in states else None
            out_BN, last_B = step(valid_BN, initial, *batch)
            outputs.append(out_BN.flatten(0, 1))
            states.update(zip(segments, last_B.unbind(), strict=True))
        if self.after is not None:
            self.after[key] = states[len(self._edges) - 2][None]
        return _pad(torch.cat(outputs).index_select(0, place_T)[None], inputs[0].shape[1])

    @staticmethod
    def _by_batch(x_M: torch.Tensor, masks: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        sizes = [mask_BN.numel() for mask_BN in masks]
        for part, mask_BN in zip(x_M.split(sizes), masks, strict=True):
            yield part.view(*mask_BN.shape, *x_M.shape[1:])

    def taps(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens of all segments one behind another, each after the `count` tokens before it on its path; and which of
        them are tokens of the part, in its order. Counted from the first of `count` tokens before the part."""
        if count not in self._places_by_taps:
            tokens: list[Ints] = []
            for start, stop in pairwise(self._edges):
                path, token = [*range(start, stop)], start
                for _ in range(count):
                    token = int(self._parent_T[token]) if token >= 0 else token - 1
                    path.insert(0, token)
                tokens.append(np.array(path) + count)
            lengths = np.array([len(segment) for segment in tokens])
            skip_T = np.repeat(count * np.arange(1, len(tokens) + 1), lengths - count)
            self._places_by_taps[count] = (
                torch.from_numpy(np.concatenate(tokens)).to(self._device),
                torch.from_numpy(np.arange(self.count) + skip_T).to(self._device),
            )
        return self._places_by_taps[count]


def _pad(x_1T: torch.Tensor, count: int) -> torch.Tensor:
    """With zeros up to so many tokens."""
    missing = count - x_1T.shape[1]
    return torch.cat([x_1T, x_1T.new_zeros(1, missing, *x_1T.shape[2:])], 1) if missing else x_1T


def _convolve(
    own: Any, segments: Segments, layer: int, x_1CT: torch.Tensor, weight_CK: torch.Tensor, *args: Any, **options: Any
) -> torch.Tensor:
    """A causal convolution of each token with those before it on its path."""
    count, key = weight_CK.shape[-1] - 1, (layer, "convolution")
    x_1TC = x_1CT.transpose(1, 2)
    before = x_1TC.new_zeros(1, count, x_1TC.shape[2]) if segments.before is None else segments.before[key]
    x_1TC = torch.cat([before, x_1TC[:, : segments.count]], 1)
    if segments.after is not None:
        segments.after[key] = x_1TC[:, x_1TC.shape[1] - count :].clone()
    token_M, place_T = segments.taps(count)
    out_1CM = own(x_1TC.index_select(1, token_M).transpose(1, 2), weight_CK, *args, **options)
    return _pad(out_1CM.transpose(1, 2).index_select(1, place_T), x_1CT.shape[2]).transpose(1, 2)


def _delta_rule(
    own: Any,
    segments: Segments,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: None = None,
    output_final_state: bool = False,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The gated delta rule. A decay of 1 and a rate of 0 change no state."""

    def step(valid_BN: torch.Tensor, initial: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        g, beta = (x * valid_BN[..., None] for x in (g, beta))
        return own(q, k, v, g=g, beta=beta, initial_state=initial, output_final_state=True, **options)

    return segments.scan((layer, "delta rule"), step, query, key, value, g, beta), None


def _mamba2(
    own: Any,
    segments: Segments,
    layer: int,
    x: torch.Tensor,
    dt: torch.Tensor,
    a_H: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    dt_bias: torch.Tensor,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
    initial_states: None = None,
    return_final_states: bool = False,
    **options: Any,
) -> torch.Tensor:
    """The scan of Mamba 2. A time step of 0 changes no state."""
    dt = dt + dt_bias.to(dt.dtype)
    dt = (torch.nn.functional.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)

    def step(valid_BN: torch.Tensor, initial: Any, x: Any, dt: Any, b: Any, c: Any) -> Any:
        dt = dt * valid_BN[..., None]
        return own(x, dt, a_H, b, c, initial_states=initial, return_final_states=True, **options)

    return segments.scan((layer, "mamba2"), step, x, dt, b, c)


def _no_fusion(*args: Any, **options: Any) -> None:
    """No kernel that computes convolution, scan, norm and projection at once: it knows no branches and no adapters."""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolve,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "mamba2_chunk_scan": _mamba2,
    "mamba2_split_conv1d_scan_combined": _no_fusion,
}
"""By the name in transformers: (its own function, segments, the layer's number, its arguments …) → its result."""


class _Exchange:
    """A function of a module of transformers, and ours where a layer passes segments on."""

    def __init__(self, own: Any, ours: Callable[..., Any]) -> None:
        self._own, self._ours = own, ours

    def __call__(self, *args: Any, segments: Segments | None = None, layer: int = -1, **options: Any) -> Any:
        if segments is None and self._ours is not _no_fusion:
            return self._own(*args, **options)
        return self._ours(self._own, segments, layer, *args, **options)


def has_known_layers(base: Any) -> bool:
    """Whether the model has recurrent layers that can begin with a state. Architectures have one kind of them."""
    return any(True for _ in _layers(base))


def carry_states(base: Any) -> None:
    """Makes the known recurrent layers of a model begin each branch of a row with the state of its parent, where they
    get the keyword argument `tree`."""
    for layer in _layers(base):
        module = sys.modules[type(layer).__module__]
        for name, ours in FUNCTIONS.items():
            own = getattr(module, name, None)
            if own is not None and not isinstance(own, _Exchange):
                setattr(module, name, _Exchange(own, ours))
        layer.forward = partial(_forward, layer)


def _layers(base: Any) -> Iterator[Any]:
    return (module for module in base.modules() if type(module).__name__ in LAYERS)


def _forward(layer: Any, *args: Any, tree: Any = None, **options: Any) -> Any:
    branches = {} if tree is None else {"segments": tree.segments, "layer": layer.layer_idx}
    return type(layer).forward(layer, *args, **options, **branches)
