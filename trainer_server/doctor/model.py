"""Checks of a model: where its files are, and whether the installed vLLM will serve it in the memory that is there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trainer_server.doctor.finding import Finding, State
from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.served_model import resolve
from trainer_server.engines.vllm.parsers import Choice, Parsers
from trainer_server.engines.vllm.registry import Registry
from trainer_server.planning.model_shape import ModelShape
from trainer_server.planning.plan import Plan, Workload, make_plan, remedies
from trainer_server.process.hardware import GIB, checkpoint_above, cpu_dtype, free_disk, gpu_memory, main_memory
from trainer_server.wire import ConfigError

_SERVE, _PARSE = "serve", "parse"
_CPU_OVERHEAD = 4.0
"""GiB of main memory that vLLM and the trainer take on CPUs besides weights, activations and KV cache. An estimate:
measured with SmolLM2-135M, whose two processes take about 5 GiB in all."""
_CPU_TOKENS = 8192
"""Tokens of the trainer's longest row."""
_SHORT_CONTEXT = 2048
"""Tokens below which an agent with tools has hardly any room."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a model's files are.

    Args:
        files: Configuration, tokenizer and template.
        name: The model's name on the gateway.
        whole: Whether the weights are on this machine too.
        hub: Whether it is a model of the hub.
    """

    files: ModelFiles
    name: str
    whole: bool
    hub: bool


def locate(model: str, revision: str | None, cache: Path) -> Location:
    """Finds a model's files. Downloads configuration, tokenizer and template of a hub model, not its weights.

    Raises:
        ConfigError, EngineError: There is no such model, or it cannot be downloaded.
    """
    base = resolve(model, cache, revision=revision, weights=False)
    directory = Path(base.path)
    return Location(ModelFiles(directory), base.name, _has_weights(directory), hub=base.revision is not None)


def _has_weights(directory: Path) -> bool:
    """Whether all files of weights are there that the index names, or any where there is no index."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        try:
            names = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return False
        return all((directory / name).exists() for name in names)
    return any(directory.glob("*.safetensors")) or any(directory.glob("*.bin"))


def shape_of(files: ModelFiles) -> ModelShape | str:
    """The model's sizes; or why they cannot be computed."""
    try:
        return ModelShape.of_config(files.config, str(files.directory / "config.json"))
    except ConfigError as error:
        return str(error)


def check_files(location: Location, shape: ModelShape | str) -> Finding:
    """Checks whether the weights are here, or whether there is room for them."""
    where = location.files.directory
    if location.whole:
        return Finding(_SERVE, "files", State.ok, f"{location.name} is in {where}")
    if not location.hub:
        text = f"{where} has a configuration and no weights, or not all of them"
        return Finding(_SERVE, "files", State.failed, text, "put *.safetensors or *.bin there")
    if isinstance(shape, str):
        text = f"{location.name}, commit {where.name}: the weights will be downloaded by `serve`"
        return Finding(_SERVE, "files", State.ok, text)
    size, free = shape.weight_bytes, free_disk(where)
    text = (
        f"{location.name}, commit {where.name}: `serve` will download about {size / GIB:.1f} GiB, and "
        f"{free / GIB:.1f} GiB are free there"
    )
    if size > free:
        return Finding(_SERVE, "files", State.failed, text, "make room, or set HF_HOME to a directory on another disk")
    return Finding(_SERVE, "files", State.ok, text)


def check_architecture(files: ModelFiles, vllm_registry: Registry | None) -> Finding:
    """Checks whether vLLM knows the model's architecture."""
    names = ", ".join(files.architectures) or "no architecture"
    if vllm_registry is None:
        text = f"config.json names {names}; the installed vLLM does not say what it knows"
        return Finding(_SERVE, "architecture", State.warning, text, "art-langgraph engine install")
    if set(files.architectures) & set(vllm_registry.architectures):
        return Finding(_SERVE, "architecture", State.ok, f"vLLM {vllm_registry.version} knows {names}")
    text = f"config.json names {names}, which vLLM {vllm_registry.version} does not know"
    remedy = "take a model of an architecture that it knows"
    if files.architectures:
        remedy += ". vLLM may serve it by transformers, which this project has not tried"
        return Finding(_SERVE, "architecture", State.warning, text, remedy)
    return Finding(_SERVE, "architecture", State.failed, text, remedy)


def check_own_code(files: ModelFiles, vllm_registry: Registry | None, trusted: bool) -> Finding | None:
    """Checks whether Python code in the model's directory is needed; None: there is none."""
    if not files.needs_own_code:
        return None
    text = f"the model brings Python code of its own ({files.config['auto_map']['AutoConfig']})"
    if trusted:
        return Finding(_SERVE, "own code", State.warning, f"{text}, which --trust-remote-code lets run")
    if vllm_registry and set(files.architectures) & set(vllm_registry.architectures):
        return Finding(_SERVE, "own code", State.ok, f"{text}; vLLM knows the architecture without it")
    remedy = "read that code; if you trust it, serve with --trust-remote-code"
    return Finding(_SERVE, "own code", State.failed, f"{text}, which may not run", remedy)


def check_memory(
    model: str,
    files: ModelFiles,
    shape: ModelShape | str,
    *,
    rank: int,
    gpus: int | None,
    gpu_gib: float | None,
    experts: bool = False,
) -> Finding:
    """Checks whether engine and trainer fit into memory: that of GPUs by the computation of `plan`, or main memory.

    Args:
        model: The value of `--model`.
        files: The model's files.
        shape: Its sizes, or why they are not known.
        rank: Largest LoRA rank.
        gpus: Number of GPUs; None: those of this machine.
        gpu_gib: Memory of each; None: as they have.
        experts: Whether policies adapt the experts of a mixture, too. On CPUs none are adapted.
    """
    if isinstance(shape, str):
        return Finding(
            _SERVE, "memory", State.warning, f"not computed: {shape}", "try it, or compare the size of its files"
        )
    present = gpu_memory()
    if gpus is None and not present:
        return _main_memory(shape, rank)
    count = gpus or len(present)
    each = gpu_gib or (min(present) / GIB if present else 80.0)
    context = min(files.context or 8192, 8192)
    experts = experts and shape.experts is not None
    workload = Workload(model, shape, count, each, context=context, rank=rank, experts=experts)
    plan = make_plan(workload)
    machine = f"{count} × {each:.0f} GiB"
    if not plan.fits:
        changes = remedies(workload)
        remedy = f"it would with {', or with '.join(changes)}" if changes else "take a smaller model"
        return Finding(_SERVE, "memory", State.failed, f"engine and trainer do not fit {machine}", remedy)
    return Finding(_SERVE, "memory", State.ok, f"fits {machine}: {_layout(plan)}; `art-langgraph plan` has the details")


def _layout(plan: Plan) -> str:
    trainer = f"{plan.trainer} for the trainer" if plan.trainer else "the trainer on the same GPU"
    turns = " by turns (--share-gpu)" if plan.turns else ""
    return f"{plan.engines} engine of {plan.tensor} GPU, {trainer}{turns}, {plan.kv_tokens:,} tokens of KV cache"


def _main_memory(shape: ModelShape, rank: int) -> Finding:
    """On CPUs, engine and trainer each hold the model in main memory."""
    # The longest row whose layers are computed once: in fp32 half of these tokens, each twice as wide.
    row_tokens = min(checkpoint_above(shape.layers, shape.hidden_size), _CPU_TOKENS)
    parts = {
        f"weights in {cpu_dtype()}, twice": 2 * _wide(shape.weight_bytes) / GIB,
        "LoRA, gradients, AdamW": shape.trainer_state_bytes(rank) / GIB,
        "activations": max(shape.activation_bytes(row_tokens), _wide(shape.activation_bytes(_CPU_TOKENS))) / GIB,
        "KV cache": 2.0,
        "libraries": _CPU_OVERHEAD,
    }
    total, there = sum(parts.values()), main_memory() / GIB
    text = (
        f"needs about {total:.1f} GiB ({', '.join(f'{name} {gib:.1f}' for name, gib in parts.items())}) of {there:.1f}"
    )
    if total > there:
        remedy = "a machine with more memory, a smaller model, or a smaller token_budget in GRPOConfig"
        state = State.failed if total - parts["activations"] > there else State.warning
        return Finding(_SERVE, "memory", state, text, remedy)
    return Finding(_SERVE, "memory", State.ok, text)


def _wide(size: int) -> int:
    """Bytes of what takes `size` bytes in bf16, as this machine's CPU computes with it."""
    return size if cpu_dtype() == "bfloat16" else 2 * size


def check_context(files: ModelFiles, shape: ModelShape | str) -> Finding:
    """Checks the longest context: what the configuration allows, and what a KV cache of 2 GiB on CPUs holds."""
    if files.context is None:
        text = "config.json names no longest context: vLLM takes 2,048 tokens"
        return Finding(_SERVE, "context", State.warning, text, "--engine-args '--max-model-len N'")
    text = f"{files.context:,} tokens"
    if not gpu_memory() and not isinstance(shape, str):
        capacity = 2 * GIB // _wide(shape.kv_bytes_per_token)
        if capacity < files.context:
            text += f"; the KV cache of this machine holds {capacity:,}, which is then the longest context"
    if files.context < _SHORT_CONTEXT:
        return Finding(_SERVE, "context", State.warning, text, "prompts with tools may not fit: take another model")
    return Finding(_SERVE, "context", State.ok, text)


def check_parsers(parsers: Parsers, files: ModelFiles) -> list[Finding]:
    """What the parsers are. A model without them can be served and trained; it only cannot call tools."""
    tools = Finding(_PARSE, "tool calls", State.ok, str(parsers.tools))
    if parsers.tools.name is None:
        remedy = (
            "without a parser, requests with tools are refused: --tool-call-parser NAME, if the model can call tools"
        )
        tools = Finding(_PARSE, "tool calls", State.warning, str(parsers.tools), remedy)
    elif files.template and not files.shows_tools:
        text = f"{parsers.tools}; but the template does not show the tools of a request to the model"
        remedy = "name the tools in the system prompt, or another template: --engine-args '--chat-template FILE'"
        tools = Finding(_PARSE, "tool calls", State.warning, text, remedy)
    return [tools, _reasoning(parsers.reasoning)]


def _reasoning(choice: Choice) -> Finding:
    if choice.name is None and "--reasoning-parser" in choice.why:
        remedy = "if the model always thinks: --reasoning-parser NAME. Without it thoughts stay in the text"
        return Finding(_PARSE, "thoughts", State.warning, str(choice), remedy)
    return Finding(_PARSE, "thoughts", State.ok, str(choice))
