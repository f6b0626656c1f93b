"""The base model with one LoRA at a time, and log-probabilities at read-out positions.

Shapes: T tokens of a row, R read-outs, V vocabulary, E hidden size.
"""

from __future__ import annotations

import copy
import gc
import json
import logging
import math
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from trainer_server.process.hardware import checkpoint_above
from trainer_server.training.model import attention, flex
from trainer_server.training.model.architecture import (
    check_repeatable,
    check_trainable,
    try_attention,
    unpackable,
    without_dropout,
)
from trainer_server.training.model.head import HeadLogprobs, logit_cap
from trainer_server.training.model.layers import Layers
from trainer_server.training.model.lora import (
    FusedLoRA,
    adapted_targets,
    has_experts,
    lora_config,
    unadapted_layers,
)
from trainer_server.training.model.memory import HostWeights, LayerMemory, free_memory
from trainer_server.training.model.precision import Quantization, keep_fp32, quantization_options, with_gradients
from trainer_server.training.model.recurrent import carry_states, has_known_layers
from trainer_server.training.model.routing import Experts
from trainer_server.training.model.speed import flops_per_token, product_flops
from trainer_server.training.model.tree import Ints, Row, pack
from trainer_server.training.ranks import ALONE, Ranks, shard
from trainer_server.wire import GRPOConfig, PolicySpec, TrainingError
from trainer_server.wire.policies import EXPERTS

log = logging.getLogger(__name__)

TOKEN_BUDGET = int(GRPOConfig.model_fields["token_budget"].default)
"""Tokens of a row at most, by default."""
ROW_TOKENS = 32_768
"""Tokens of a row above which a longer one is no faster."""
_TRIAL_TOKENS = 200
"""Of the row that compiled layers are tried with: no multiple of anything."""
_TRIAL_ERROR = 0.2
"""Relative difference of hidden states or gradients that rounding in bf16 explains: gradients of two exact ways differ
by up to a tenth there. A gradient that is lost differs by 1."""

_ATTENTION: dict[str, tuple[str, Callable[[Row, torch.device], Any]]] = {
    "cpu": (attention.NAME, attention.Layout.of),
    "cuda": (flex.NAME, flex.FlexLayout.of),
}
"""By kind of device: the name of the attention function, and how a row is laid out for it."""


class PolicyModel:
    """A frozen base model under a LoRA whose weights are swapped in place. The LoRA's weights are fp32 masters."""

    def __init__(
        self,
        path: str,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: str | None = None,
        quantization: Quantization | None = None,
        ranks: Ranks = ALONE,
        rest: bool = False,
        trust_remote_code: bool = False,
        cache: Path | None = None,
    ) -> None:
        """Loads a base model.

        Args:
            path: Directory or hub id.
            dtype: Of the base model; the LoRA is always fp32.
            device: Where it computes; None: the GPU if there is one.
            quantization: Of the base model's linear layers, by bitsandbytes. The engine has its own setting; the
                difference between the two shows in `logp_gap`.
            ranks: The processes that compute a step together, and may divide the base model.
            rest: Use no GPU before `wake`.
            trust_remote_code: Whether Python code in the model's directory may run.
            cache: Directory in which measurements are kept for other processes; None: they are not kept.

        Raises:
            TrainingError: The model or the combination of options cannot be trained.
        """
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        options: dict[str, Any] = (
            {} if quantization is None else quantization_options(quantization, self.device, dtype, ranks)
        )
        config = with_gradients(AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code))
        base: Any = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, trust_remote_code=trust_remote_code, **options
        )
        check_trainable(base)
        without_dropout(base)
        base.config.use_cache = False
        base.requires_grad_(False)
        if self.device.type == "cpu":
            keep_fp32(base)
        self._base = base
        self._flops = flops_per_token(base) if quantization is None else None  # of packed weights nobody knows how many
        self._unadapted = unadapted_layers(base)
        self._layers = Layers(base.get_decoder())
        self._memories: dict[str, LayerMemory] = {}
        """By shape of the LoRA."""
        self._cache = None if ranks.shards_model else cache  # there, all ranks measure together, or none
        self._facts = {"dtype": str(dtype), "quantization": quantization, "torch": torch.__version__}
        self._by_segments = has_known_layers(base)
        self._divided = ranks.shards_model
        carry_states(base)
        self.compiles = (
            self.device.type == "cuda" and quantization is None and not (ranks.shards_model or self._by_segments)
        )
        """Whether the first row compiles the layers, see `compile_layers`. On CPUs products take most of the time, and
        layers that go by the segments of a tree would be compiled for each tree anew."""
        self.compilation: dict[str, Any] = {}
        """The metrics that tell whether layers are compiled, and why they are not; empty before it was tried."""
        self.free_memory = None if self.device.type == "cpu" else partial(free_memory, self.device)
        """Bytes of the device that nobody uses; None: rows are computed twice by their length alone."""
        self._movable = quantization is None
        self._peft: PeftModel | None = None
        self._lora: FusedLoRA | None = None
        self._adapter = ""
        self._attention, self._layout = _ATTENTION.get(self.device.type, _ATTENTION["cpu"])
        if self._attention == flex.NAME:
            self._layout = partial(flex.FlexLayout.of, windows=flex.windows(base.config.get_text_config()))
        self._examined = False
        self.unshared_because: str | None = None
        """Why rows may not branch: completions then share a row only where one continues the other, and the model's own
        forward pass computes it. None: they may."""
        if ranks.shards_model:  # before it comes to a GPU, which may not hold all of it
            shard(base.get_decoder().layers)
        self._is_awake = False
        self._host = HostWeights(base, self.device) if rest and self._movable and not ranks.shards_model else None
        if not rest:
            self.wake()
        text = base.config.get_text_config()
        self.checkpoint_above = checkpoint_above(text.num_hidden_layers, text.hidden_size, dtype.itemsize)
        """Tokens of a row above which layers are computed again in the backward pass, which takes less memory."""
        self.row_end = self.checkpoint_above if self.device.type == "cpu" else None
        """Tokens after which `pack` ends a row, so that its layers are not computed twice. None on GPUs, where rows of
        few tokens are slow."""

    @property
    def share(self) -> bool:
        """Whether completions may share a row."""
        return self.unshared_because is None

    @property
    def sharing(self) -> dict[str, Any]:
        """The metrics that tell whether completions share rows, and why they do not; none before it was tried."""
        if not self._examined:
            return {}
        because = {} if self.unshared_because is None else {"rows_unshared_because": self.unshared_because}
        return {"rows_shared": self.share, **because, **self.compilation}

    def mfu(self, tokens_per_second: float) -> float | None:
        """Model FLOPs utilisation: the operations of so many tokens a second, forward and backward, as a share of those
        of one large product on this device. None: the weights are quantised, so that products are others.

        tokens_per_second: Of this process."""
        if self._flops is None:
            return None
        return self._flops * tokens_per_second / product_flops(self.device, self._base.dtype)

    @property
    def detaches(self) -> bool:
        """Whether a row's trunk can be computed without a gradient: on CPUs, where completions share rows."""
        return self.share and self._attention == attention.NAME

    @property
    def detaches_context(self) -> bool:
        """The same of all tokens but those that read out. Recurrent layers carry their state through all of them, and
        processes that divide a model must compute the same passes."""
        return self.detaches and not (self._by_segments or self._divided)

    def wake(self) -> None:
        """Brings model and LoRA to the device that computes. There it is tried, once, whether rows can be shared."""
        if self._movable:
            if self._host is not None:
                self._host.wake()
            self._base.to(self.device)
        self._is_awake = True
        if not self._examined:
            check_repeatable(self._base)
            text = self._base.config.get_text_config()
            self.unshared_because = unpackable(text, by_segments=self._by_segments) or try_attention(
                self._base, self._attention, self._layout, HeadLogprobs
            )
            self._examined = True
            if self.unshared_because is not None:
                log.warning("completions do not share rows, which costs time: %s", self.unshared_because)

    def rest(self) -> None:
        """Gives the GPU's memory back: model and LoRA wait in main memory."""
        if self._lora is not None:
            self._lora.untie()
        if self._host is not None:
            self._host.rest()
        self._base.to("cpu")
        self._is_awake = False
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def select(self, spec: PolicySpec, *, beside: bool = False) -> None:
        """Makes room for a LoRA of this shape and removes those of other shapes. Policies of one shape take turns.

        beside: Leave a LoRA of another shape where it is: its weights are there again when it is selected."""
        targets = adapted_targets(self._base, spec.targets)
        shape = f"r{spec.rank}-a{spec.alpha:g}-{zlib.crc32('-'.join(targets).encode()):x}".replace(".", "_")
        others = set() if self._peft is None or beside else set(self._peft.peft_config) - {shape}
        if self._peft is None:
            self._peft = get_peft_model(self._base, lora_config(self._base, spec), adapter_name=shape)
        elif shape not in self._peft.peft_config:
            self._peft.add_adapter(shape, lora_config(self._base, spec))
        if shape != self._adapter and has_experts(self._base):
            log.warning(
                "%s is a mixture of experts: only %s get an adapter", type(self._base).__name__, ", ".join(targets)
            )
        elif shape != self._adapter and self._unadapted:
            names, left_out = ", ".join(targets), ", ".join(self._unadapted)
            log.warning("%s: %s get an adapter, %s none", type(self._base).__name__, names, left_out)
        self._peft.set_adapter(shape)
        for other in others:
            self._peft.delete_adapter(other)
        if shape != self._adapter:
            if self._lora is not None:
                self._lora.remove()
            self._lora = FusedLoRA(self._peft, shape)
            if self._is_awake:
                self._lora.tie()
        self._adapter = shape
        self._peft.train()

    def initialise(self, spec: PolicySpec) -> None:
        """The untrained LoRA: A uniform in ±1/√in as PEFT and the LoRA paper's code have it, from the seed; B = 0."""
        self.select(spec)
        generator = torch.Generator().manual_seed(spec.seed)
        with torch.no_grad():
            for name, weight in self.parameters():
                if "lora_A" in name:
                    bound = 1 / math.sqrt(weight.shape[1])
                    weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))
                else:
                    weight.zero_()

    def load(self, spec: PolicySpec, directory: Path, *, beside: bool = False) -> None:
        """Puts a version's weights in place. Raises TrainingError when they do not fit the base model.

        The version's own targets count: the default ones may have meant fewer layers when it was made.

        beside: Whether LoRAs of other shapes stay in place; otherwise they are removed."""
        config = json.loads((directory / "adapter_config.json").read_text())
        targets = (*config["target_modules"], *((EXPERTS,) if config.get("target_parameters") else ()))
        self.select(spec.model_copy(update={"targets": targets}), beside=beside)
        assert self._peft is not None
        state = load_file(directory / "adapter_model.safetensors")
        result: Any = set_peft_model_state_dict(self._peft, state, adapter_name=self._adapter)
        missing = [key for key in result.missing_keys if "lora_" in key and f".{self._adapter}." in key]
        if result.unexpected_keys or missing:
            wrong = (result.unexpected_keys or missing)[0]
            raise TrainingError(f"the adapter in {directory} does not fit the base model: {wrong}")

    def save(self, directory: Path) -> None:
        """Writes adapter_config.json and adapter_model.safetensors, PEFT's format."""
        assert self._peft is not None
        state = get_peft_model_state_dict(self._peft, adapter_name=self._adapter, save_embedding_layers=False)
        config = copy.copy(self._peft.peft_config[self._adapter])
        config.target_modules = sorted(config.target_modules)  # type: ignore[assignment, attr-defined]  # PEFT has a set
        config.target_parameters = sorted(config.target_parameters or ()) or None
        save_file({k: v.contiguous().cpu() for k, v in state.items()}, directory / "adapter_model.safetensors")
        config.save_pretrained(str(directory))

    def parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The LoRA's weights by name, in a fixed order."""
        assert self._peft is not None
        mark = f".{self._adapter}."
        for name, weight in sorted(self._peft.named_parameters()):
            if mark in name and "lora_" in name:
                yield name.replace(mark, "."), weight

    def _layers_twice(self, tokens: int) -> int:
        """How many layers a row of so many tokens computes twice."""
        if not torch.is_grad_enabled():
            return 0
        if self.free_memory is None:
            return self._layers.count if tokens > self.checkpoint_above else 0
        return self._layer_memory().layers_twice(tokens, self._layers.count, self.free_memory())

    def row_budget(self, token_budget: int) -> int:
        """Tokens of a packed row at most: on a GPU as many as fit with no layer computed twice, up to ROW_TOKENS.

        Args:
            token_budget: That of the configuration. A row may have as many in any case; one that is lower than the
                default is somebody's choice, and stays.
        """
        if self.free_memory is None or token_budget < TOKEN_BUDGET:
            return token_budget
        self._prepare_layers()
        return max(
            token_budget, min(ROW_TOKENS, self._layer_memory().row_tokens(self._layers.count, self.free_memory()))
        )

    def _layer_memory(self) -> LayerMemory:
        if self._adapter not in self._memories:
            config = {key: value for key, value in self._base.config.to_dict().items() if key != "_name_or_path"}
            facts = {
                **self._facts,
                "model": json.loads(json.dumps(config, default=str)),
                "adapter": self._adapter,
                "card": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type,
                "compiled": bool(self.compilation.get("layers_compiled")),
                "shared": self.share,
            }
            self._memories[self._adapter] = LayerMemory.find(self._cache, facts, self._measure_layers)
        return self._memories[self._adapter]

    def _measure_layers(self) -> LayerMemory:
        self._layers.twice = 0
        with torch.enable_grad():
            return LayerMemory.measure(self._any_row, self._layers.count)

    def _prepare_layers(self) -> None:
        """Compiles the layers before the first row."""
        if self.compiles and self.share and not self.compilation:
            self.compile_layers()

    def compile_layers(self) -> None:
        """Compiles the layers, if they give the hidden states and gradients of the uncompiled ones, of a small row.

        Otherwise they stay as they are, which the log and the metrics say: attention is compiled in any case."""
        weights = [weight for _, weight in self.parameters()]
        size = self._base.config.get_text_config().hidden_size
        direction_E = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(self.device)
        self._layers.twice = 0

        def results() -> list[torch.Tensor]:
            with torch.enable_grad():
                hidden_1TE = self._any_row(_TRIAL_TOKENS)
                grads = torch.autograd.grad((hidden_1TE.float() @ direction_E).sum(), weights)
            return [hidden_1TE.detach().float(), torch.cat([grad.flatten() for grad in grads])]

        expected = results()
        self._layers.compile()
        because: str | None = None
        try:
            pairs = zip(results(), expected, strict=True)
            if any(not (mine - theirs).norm() <= _TRIAL_ERROR * theirs.norm() for mine, theirs in pairs):
                because = "compiled, they give other hidden states or gradients"
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of torch's compiler, of any kind: the uncompiled layers are right
            log.warning("%s cannot be compiled", type(self._base).__name__, exc_info=error)
            because = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self.compilation = {"layers_compiled": because is None}
        if because is not None:
            self._layers.leave_uncompiled()
            self.compilation["layers_uncompiled_because"] = because
            log.warning("layers are not compiled, which costs time: %s", because)

    def _any_row(self, tokens: int) -> torch.Tensor:
        """Hidden states (1, T, E) of a row of any tokens."""
        (row,) = pack([np.arange(tokens) % 2], [np.zeros(1, dtype=np.int64)], budget=tokens).rows
        return self._hidden_states(row, self._layout(row, self.device) if self.share else None)

    def _hidden_states(self, row: Row, layout: Any, part: slice | Ints = slice(None)) -> torch.Tensor:
        """Hidden states (1, T, E) of a part of a row, and of what the layout pads it with.

        Args:
            row: The row.
            layout: Of the part; None: the model's own attention, for a row without branches.
            part: Which tokens.
        """
        padding = 0 if layout is None else layout.padding
        tokens_1T, depth_1T = (
            torch.from_numpy(np.pad(values_T[part], (0, padding))).to(self.device)[None]
            for values_T in (row.tokens_T, row.depth_T)
        )
        tree = {} if layout is None else {"position_ids": depth_1T, "tree": layout}
        outputs = self._base.get_decoder()(input_ids=tokens_1T, use_cache=False, **tree)
        hidden_1TE: torch.Tensor = outputs.last_hidden_state
        return hidden_1TE

    @property
    def replays(self) -> bool:
        """Whether the model is a mixture whose experts can be chosen for it."""
        return self._layers.routers.mixtures > 0

    def logprobs(
        self,
        row: Row,
        temperature_R: torch.Tensor,
        *,
        entropy_gradient: bool = False,
        detached: bool = False,
        experts_TLK: Experts | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of every read-out's target, and the entropy there, both fp32 (R,), in nats.

        Logits are divided by each read-out's own temperature, as the sampler did. Rows of more than `checkpoint_above`
        tokens are checkpointed, whatever was computed before; on GPUs, as many layers of a row as must be to fit.

        Args:
            row: Of a packed prefix tree; of one completion where completions may not share rows.
            temperature_R: The sampler's, by read-out.
            entropy_gradient: Whether the entropy has a gradient; otherwise it is detached.
            detached: Whether no gradient goes through the keys and values of the row's trunk, see `detaches`.
            experts_TLK: Those of each token of the row, where the model `replays`; None: its routers choose.

        Raises:
            TrainingError: The row cannot be shared, or the experts are those of another model.
        """
        self._prepare_layers()
        self._layers.twice = self._layers_twice(len(row.tokens_T))
        experts_TLK = experts_TLK if self.replays else None
        place_R, target_R = (torch.from_numpy(index_R).to(self.device) for index_R in (row.place_R, row.target_R))
        temperature_R = temperature_R.float().to(self.device)
        if self.unshared_because is not None:
            if len(row.runs) > 1:
                raise TrainingError(f"this model cannot share a row between completions: {self.unshared_because}")
            tokens_1T = torch.from_numpy(row.tokens_T).to(self.device)[None]
            with self._layers.replay(experts_TLK, 0, self.device):
                logits_RV = self._base(input_ids=tokens_1T, use_cache=False, logits_to_keep=place_R).logits[0]
            logp_RV = (logits_RV.float() / temperature_R[:, None]).log_softmax(1)
            entropy_R = -(logp_RV.exp() * logp_RV).sum(1)
            logp_R = logp_RV.gather(1, target_R[:, None])[:, 0]
            return logp_R, entropy_R if entropy_gradient else entropy_R.detach()
        trunk = row.trunk if detached and self.detaches else 0
        layout = (
            attention.Layout.of(row, self.device, self.trunk(row, trunk)) if trunk else self._layout(row, self.device)
        )
        experts_TLK = None if experts_TLK is None else experts_TLK[trunk:]
        with self._layers.replay(experts_TLK, layout.padding, self.device):
            hidden_1TE = self._hidden_states(row, layout, slice(trunk, None))
        return self._read_out(hidden_1TE, place_R - trunk, target_R, temperature_R, entropy_gradient)

    def _read_out(
        self,
        hidden_1TE: torch.Tensor,
        index_R: torch.Tensor,
        target_R: torch.Tensor,
        temperature_R: torch.Tensor,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The log-probs and entropies of `logprobs`; index_R: whose hidden state predicts each target."""
        logp_and_entropy: tuple[torch.Tensor, torch.Tensor] = HeadLogprobs.apply(
            hidden_1TE[0].index_select(0, index_R),
            self._base.get_output_embeddings().weight,
            target_R,
            temperature_R,
            entropy_gradient,
            logit_cap(self._base.config.get_text_config()),
        )
        return logp_and_entropy

    def answer_logprobs(self, row: Row, trunk: attention.Trunk | None = None) -> torch.Tensor:
        """Log-probability of every read-out's target, fp32 (R,), in nats, where `detaches_context`.

        No gradient goes through the keys and values of the tokens that read nothing out, of which most rows have many
        more: the whole row is computed without a backward pass, and those that read out once more with one.

        Args:
            row: Of a packed prefix tree.
            trunk: What layers kept of the first tokens of its trunk. None: these are computed too.
        """
        self._prepare_layers()
        self._layers.twice = 0
        start = 0 if trunk is None else trunk.length
        cache = attention.Trunk(len(row.tokens_T))
        with torch.no_grad():
            layout = attention.Layout.of(row, self.device, trunk, pass_cache=cache)
            self._hidden_states(row, layout, slice(start, None))
        place_T, order_R = np.unique(row.place_R, return_inverse=True)
        self._layers.twice = self._layers_twice(len(place_T))
        layout = attention.Layout.of_places(row, self.device, place_T, row.trunk, cache)
        hidden_1TE = self._hidden_states(row, layout, place_T)
        index_R, target_R = (torch.from_numpy(each_R).to(self.device) for each_R in (order_R, row.target_R))
        temperature_R = torch.ones(len(row.target_R), device=self.device)
        logp_R, _ = self._read_out(hidden_1TE, index_R, target_R, temperature_R, False)
        return logp_R

    @torch.no_grad()
    def trunk(self, row: Row, length: int) -> attention.Trunk:
        """What layers keep of the first tokens of a row's trunk, as the weights in place compute it.

        Args:
            row: The row.
            length: How many tokens, `row.trunk` at most.
        """
        self._prepare_layers()
        layout = attention.Layout.of_trunk(row, self.device, length)
        self._hidden_states(row, layout, slice(length))
        assert layout.pass_cache is not None
        return layout.pass_cache
