"""Whether completions may share rows in an architecture: by its configuration, then by a trial on the model itself.

A model whose completions may not share rows is trained too, by its own forward pass with a row for every completion.
Shapes: T tokens of a row, R read-outs, E hidden size, V vocabulary.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig

from trainer_server.training.model.head import logit_cap
from trainer_server.training.model.tree import pack
from trainer_server.wire import TrainingError

log = logging.getLogger(__name__)

_PACKABLE = {"full_attention", "sliding_attention"}
"""Kinds of layers whose attention the prefix tree can express."""
_BY_SEGMENTS = {"linear_attention", "conv", "mlp", "moe"}
"""Kinds of layers beside them in models whose recurrent layers begin a branch with the state of its parent."""
_RECURRENT = ("mamba", "rwkv", "ssm", "linear_attn", "linear_conv", "conv_kernel", "conv_l_cache", "recurrent", "xlstm")
"""Words in the configuration's keys that tell of recurrent layers."""
_BY_LENGTH = {"dynamic", "longrope"}
"""Kinds of rotary embeddings that change with the longest position of a row."""

_REFUSALS = (TrainingError, NotImplementedError, TypeError, AttributeError)
"""What an architecture raises that cannot take the tree: it asks attention for more, or has other arguments and parts.
All causal models of transformers were tried. Errors of a compiler, a driver or a disk tell nothing about it."""
_RANDOM = ("dropout", "layerdrop")
"""Words in the names of probabilities of what is left out at random in training."""


def unpackable(config: PretrainedConfig, *, by_segments: bool = False) -> str | None:
    """Why branches of a tree would influence one another, or be inexact, in this architecture; None: no known reason.

    Recurrent and linear-attention layers carry state from token to token of a row, whatever the mask says; chunked
    attention counts places, not positions, as do temperatures of attention (Llama 4); some rotary embeddings change
    with the longest position of a row.

    Args:
        config: Of the text model.
        by_segments: Whether its recurrent layers can begin a branch with a state, see `recurrent.has_known_layers`.
    """
    packable = _PACKABLE | _BY_SEGMENTS if by_segments else _PACKABLE
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in packable:
            return f"layers of the kind {kind}"
    for key in config.to_dict():
        if not by_segments and any(word in key.lower() for word in _RECURRENT):
            return f"recurrent layers ({key})"
    if getattr(config, "use_bidirectional_attention", None) not in (None, False, "vision"):  # that of text is causal
        return "attention in both directions"
    if getattr(config, "attn_temperature_tuning", False):
        return "attention whose temperature follows from a token's place in a row"
    for kind in _rope_kinds(getattr(config, "rope_parameters", None)):
        if kind in _BY_LENGTH:
            return f"rotary embeddings of the kind {kind}, which depend on the length of a row"
    return None


def _rope_kinds(parameters: Any) -> Iterator[str]:
    """`rope_type` of all layers, or of each kind of layers."""
    if isinstance(parameters, dict):
        if "rope_type" in parameters:
            yield parameters["rope_type"]
        for value in parameters.values():
            yield from _rope_kinds(value)


def try_attention(base: Any, attention: str, layout: Any, head: Any) -> str | None:
    """Puts `attention` into the model and computes small rows with it. Where they are wrong, gives the reason and puts
    the model's own attention back; None: it stays.

    Compared: a branch with itself when its neighbour has other tokens; a single sequence with the model's own
    attention; log-probabilities with those of the model's own head (which may scale or cap its logits).

    Warnings of torch and transformers stay warnings, whatever this process makes of others.

    Args:
        base: A causal language model of transformers.
        attention: Name that an attention function is registered under with transformers.
        layout: (row, device) → the keyword argument `tree` of that function.
        head: The autograd function that log-probabilities are computed with, see `HeadLogprobs`.

    Raises:
        TrainingError: The trial failed in a way that says nothing about the architecture.
        torch.OutOfMemoryError: The device has no room for it.
    """
    own = base.config._attn_implementation
    was_training = base.training
    base.eval()  # gradient checkpointing and dropout have no place here
    shares = False
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("default")
            reason = _find_fault(base, attention, layout, head)
        shares = reason is None
    except TrainingError as error:
        reason = str(error)
    except _REFUSALS as error:
        log.warning("%s cannot take rows of several completions", type(base).__name__, exc_info=error)
        reason = _first_line(error)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise TrainingError(
            f"the trial of whether completions of {type(base).__name__} can share rows failed: {_first_line(error)}. "
            "That says nothing about the model, and rows of their own would cost a multiple of the time: the trainer's "
            "log has where it failed"
        ) from error
    finally:
        base.train(was_training)
        if not shares:
            base.set_attn_implementation(own)
    return reason


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _find_fault(base: Any, attention: str, layout: Any, head: Any) -> str | None:
    """Why rows computed with `attention` are wrong, or None. Leaves `attention` in place."""
    device = base.get_input_embeddings().weight.device
    vocabulary = base.get_input_embeddings().weight.shape[0]

    def random_tokens(n: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.random.default_rng(seed).integers(0, vocabulary, n)

    tokens_1T = torch.from_numpy(random_tokens(12, 0)).to(device)[None]
    expected_TE = base.get_decoder()(input_ids=tokens_1T, use_cache=False).last_hidden_state[0]
    base.set_attn_implementation(attention)
    if base.config._attn_implementation != attention:
        return "its attention cannot be exchanged"

    def hidden_states(row: Any) -> Any:
        outputs = base.get_decoder()(
            input_ids=torch.from_numpy(row.tokens_T).to(device)[None],
            position_ids=torch.from_numpy(row.depth_T).to(device)[None],
            use_cache=False,
            tree=layout(row, device),
        )
        return outputs.last_hidden_state[0]

    (row,) = pack([random_tokens(12, 0)[:-1]], [random_tokens(12, 0)[-1:].repeat(2)], budget=99).rows
    if (hidden_states(row) - expected_TE).norm() > 0.2 * expected_TE.norm():
        return "packed rows give other hidden states than its own attention"

    # Two branches of four tokens on a prompt of six; those of the first are exchanged.
    states = []
    for seed in (1, 2):
        first, second = (np.concatenate([[at], random_tokens(4, seed * (1 - at) + 3)]) for at in (0, 1))
        (row,) = pack([random_tokens(6, 0)] * 2, [first, second], budget=99).rows
        states.append(hidden_states(row))
    moved_T = (states[0] - states[1]).abs().amax(1)
    if moved_T[10:].max() > 0.02 * moved_T[6:10].max():  # not 0: experts compute other batches then
        return "tokens of one branch reach another"

    place_R = torch.from_numpy(row.place_R).to(device)
    target_R = torch.from_numpy(row.target_R).to(device)
    temperature_R = torch.ones(len(target_R), device=device)
    outputs = base(
        input_ids=torch.from_numpy(row.tokens_T).to(device)[None],
        position_ids=torch.from_numpy(row.depth_T).to(device)[None],
        use_cache=False,
        tree=layout(row, device),
        logits_to_keep=place_R,
    )
    logits_RV = outputs.logits[0]
    expected_R = logits_RV.float().log_softmax(1).gather(1, target_R[:, None])[:, 0]
    hidden_RE, weight_VE = states[1].index_select(0, place_R), base.get_output_embeddings().weight
    if hidden_RE.shape[1] != weight_VE.shape[1]:
        return f"its head does more than a matrix product with the {hidden_RE.shape[1]} numbers of a hidden state"
    cap = logit_cap(base.config.get_text_config())
    logp_R, _ = head.apply(hidden_RE, weight_VE, target_R, temperature_R, False, cap)
    rounding = torch.finfo(logits_RV.dtype).eps * float(logits_RV.abs().max())  # of its own logits; ours are fp32
    if (expected_R - logp_R).abs().max() > max(0.05, rounding):
        return "its head does more to logits than a matrix product"
    return None


def check_trainable(base: Any) -> None:
    """Raises TrainingError for a model that separate rows cannot train either: one that predicts no next token."""
    if base.config.is_encoder_decoder or base.get_output_embeddings() is None:
        raise TrainingError(f"{type(base).__name__} is not a decoder with a language-model head; it cannot be trained")


def without_dropout(base: Any) -> None:
    """Switches off what a model leaves out at random in training: activations and layers.

    Log-probabilities of a sampled token must not depend on chance: ratios and the loss compare them.
    """
    for part in (*base.modules(), base.config, base.config.get_text_config()):
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and any(word in name for word in _RANDOM):
                setattr(part, name, 0.0)
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0


def check_repeatable(base: Any) -> None:
    """Raises TrainingError for a model that computes at random in training although its dropout is off."""
    device = base.get_input_embeddings().weight.device
    tokens_1T = torch.arange(8, device=device)[None]
    was_training = base.training
    base.train()
    with torch.no_grad():
        first, second = (base(input_ids=tokens_1T, use_cache=False).logits.float() for _ in range(2))
    base.train(was_training)
    if (first - second).norm() > 0.05 * first.norm():  # not 0: sums on GPUs have no fixed order
        raise TrainingError(
            f"{type(base).__name__} computes at random in training, so that log-probabilities of the same tokens "
            "differ from pass to pass: it cannot be trained"
        )
