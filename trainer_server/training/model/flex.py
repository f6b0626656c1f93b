"""The GPU path: FlexAttention under the preorder mask, k ≤ q < end[k]; `end_T` gives its blocks in (T/128)² steps.

Compiled once, with dynamic shapes: a row of another length compiles nothing. A sliding window is one of positions.
What torch has no kernel for, or another one, is padded to what it has: small heads, and short rows. Attention that is
not compiled would hold T × T scores: that is an error, never a way out.
Registered with transformers as `art_flex`; the layout travels as the keyword argument `tree`, as on CPUs. Torch has no
backward pass of FlexAttention on CPUs; the forward pass there serves the tests.
Shapes: T tokens, N blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from trainer_server.training.model.attention import Sinks, register
from trainer_server.training.model.recurrent import Segments
from trainer_server.training.model.tree import Row

NAME = "art_flex"
BLOCK = 128
_SHORTEST = 2 * BLOCK
"""Tokens that a row is padded to. For rows of one block torch takes another kernel, which some dtypes do not have, and
compiles a graph more for each kind of layer."""
_NARROWEST = 16
"""Numbers of a head that it is padded to: the fewest that torch's kernel multiplies."""
_WINDOWS = 8
"""Windows that the layers of a model have at most: those that are known have two, of which one is none."""
_GRAPHS = _WINDOWS * (1 + 2**3)
"""Graphs that attention is compiled to at most: for each window one without gradients, and one for each choice among
queries, keys and values of those that need a gradient. torch's own limit is 8."""


@dataclass(slots=True)
class FlexLayout:
    """How a row is attended to on a GPU: the end of every token's subtree, and its depth; a mask for each window.

    Padding at the end of a short row sees itself alone, and nothing sees it. padding: how many tokens it has."""

    end_T: torch.Tensor
    depth_T: torch.Tensor
    padding: int
    segments: Segments
    """The same for recurrent layers."""
    masks: dict[int | None, BlockMask] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Row, device: torch.device, windows: Iterable[int | None] = ()) -> FlexLayout:
        """The layout of a row.

        Args:
            row: The row.
            device: Where it is computed.
            windows: Those that masks are made for at once; others are made when they are first asked for.
        """
        tokens = len(row.tokens_T)
        padding = max(tokens, _SHORTEST) - tokens
        end_T, depth_T = torch.from_numpy(row.end_T), torch.from_numpy(row.depth_T)
        own_end = torch.arange(tokens, tokens + padding) + 1
        layout = cls(
            torch.cat([end_T, own_end]).to(device),
            torch.cat([depth_T, torch.zeros_like(own_end)]).to(device),
            padding,
            Segments(row, device),
        )
        for window in windows:
            layout.mask(window)
        return layout

    def mask(self, window: int | None) -> BlockMask:
        if window not in self.masks:
            self.masks[window] = block_mask(self.end_T, self.depth_T, window)
        return self.masks[window]


def windows(config: Any) -> set[int | None]:
    """The windows of a model's layers, by its configuration; None among them: some layers have none."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    return {window if kind == "sliding_attention" else None for kind in kinds}


def block_mask(end_T: torch.Tensor, depth_T: torch.Tensor, window: int | None) -> BlockMask:
    """Blocks that are seen in part carry the mask; blocks seen in full do not. No T×T mask is made."""

    def visible(b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        below = (k <= q) & (q < end_T[k])
        return below if window is None else below & (depth_T[q] - depth_T[k] < window)

    length = len(end_T)
    count = -(-length // BLOCK)

    def by_block(values_T: torch.Tensor, fill: int) -> torch.Tensor:
        return torch.nn.functional.pad(values_T, (0, count * BLOCK - length), value=fill).view(count, BLOCK)

    at_N = torch.arange(count, device=end_T.device)
    first_N = at_N * BLOCK
    q_N1, k_1N = at_N[:, None], at_N[None]
    some_NN = (k_1N <= q_N1) & (by_block(end_T, 0).amax(1)[None] > first_N[:, None])
    full_NN = (k_1N < q_N1) & (by_block(end_T, length).amin(1)[None] >= (first_N + BLOCK).clamp(max=length)[:, None])
    if window is not None:
        far = 1 << 40
        least_N, most_N = by_block(depth_T, far).amin(1), by_block(depth_T, -far).amax(1)
        some_NN &= least_N[:, None] - most_N[None] < window
        full_NN &= most_N[:, None] - least_N[None] < window
    part_NN = some_NN & ~full_NN
    return BlockMask.from_kv_blocks(
        *_list_blocks(part_NN), *_list_blocks(full_NN), BLOCK_SIZE=BLOCK, mask_mod=visible, seq_lengths=(length, length)
    )


def _list_blocks(blocks_NN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many key blocks each query block sees, and which, those first."""
    counts = blocks_NN.sum(1, dtype=torch.int32)
    order = blocks_NN.to(torch.int8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], order[None, None].contiguous()


@functools.cache
def _kernel(device: str) -> Callable[..., Any]:
    """FlexAttention, compiled where that is worth it."""
    plain: Any = flex_attention
    return plain if device == "cpu" else compile_strict(plain)  # type: ignore[no-any-return]


def compile_strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled with dynamic shapes, that never runs otherwise.

    Raises:
        RuntimeError: torch is told to compile nothing, or to hide that it failed. Also raised by the function, where it
            would have to be compiled more often than is counted.
    """
    import torch._dynamo

    settings: Any = torch._dynamo.config
    if settings.disable or settings.suppress_errors:
        raise RuntimeError(
            "attention on GPUs must be compiled, and this process's environment keeps torch from it: unset "
            "TORCHDYNAMO_DISABLE, TORCH_COMPILE_DISABLE and TORCHDYNAMO_SUPPRESS_ERRORS"
        )
    settings.recompile_limit = max(settings.recompile_limit, _GRAPHS)
    kernel = torch.compile(function, dynamic=True, fullgraph=True)  # fullgraph: past the limit it raises

    def compiled_only(*args: Any, **options: Any) -> Any:
        try:
            return kernel(*args, **options)
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:
            raise RuntimeError(
                f"attention was compiled {settings.recompile_limit} times, for as many kinds of layers, and is not "
                "compiled again. Uncompiled it would take memory by the square of a row's length. That many kinds are "
                "not expected: please report the model"
            ) from error

    return compiled_only


def _pad(x_1HTD: torch.Tensor, tokens: int) -> torch.Tensor:
    """With zeros up to so many tokens, and to the narrowest head."""
    missing = max(0, _NARROWEST - x_1HTD.shape[3]), tokens - x_1HTD.shape[2]
    return torch.nn.functional.pad(x_1HTD, (0, missing[0], 0, missing[1])) if any(missing) else x_1HTD


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: FlexLayout,
    window: int | None,
    scale: float | None,
    sinks_H: Sinks,
) -> torch.Tensor:
    tokens, size = query.shape[2], value.shape[3]
    scale = query.shape[3] ** -0.5 if scale is None else scale
    options = {"block_mask": tree.mask(window), "scale": scale, "enable_gqa": query.shape[1] != key.shape[1]}
    query, key, value = (_pad(heads, len(tree.end_T)) for heads in (query, key, value))
    kernel: Any = flex_attention if torch.compiler.is_compiling() else _kernel(query.device.type)
    if sinks_H is None:
        out: torch.Tensor = kernel(query, key, value, **options)
        return out[:, :, :tokens, :size].transpose(1, 2)
    # The sink's part of the softmax is what the tokens' part lacks: σ(logsumexp of the scores − sink) is left to them.
    out, aux = kernel(query, key, value, **options, return_aux=AuxRequest(lse=True))
    left_HT1 = torch.sigmoid(aux.lse - sinks_H.float().view(1, -1, 1))[..., None]
    return (out * left_HT1.to(out.dtype))[:, :, :tokens, :size].transpose(1, 2)


tree_attention = register(NAME, _attend)
