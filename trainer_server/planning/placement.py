"""What `serve` does with the GPUs of its machine where no flag says it: the plan for them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm.parsers import argument
from trainer_server.planning.model_shape import ModelShape
from trainer_server.planning.plan import CONTEXT, GIB, Plan, Workload, make_plan, remedies
from trainer_server.process.hardware import main_memory
from trainer_server.server.config import ServerConfig
from trainer_server.wire import ConfigError
from trainer_server.wire.policies import EXPERTS

log = logging.getLogger("trainer_server")

UTILIZATION_FLAG = "--gpu-memory-utilization"
_OWN_WAY = (UTILIZATION_FLAG, "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp")
"""Flags of vLLM with which users place it themselves."""
_ANYWAY = f"To try it anyway, give vLLM's share: --engine-args '{UTILIZATION_FLAG} 0.5'"


def place(config: ServerConfig, base: ServedModel, gpus: Mapping[str, tuple[int, int]]) -> ServerConfig:
    """Options with what the plan adds: which GPUs engines and trainer get, whether they take turns, the share of the
    memory and the number of requests of vLLM. Nothing changes where engines run elsewhere, or flags place them.

    Args:
        config: Options of the server.
        base: Its model.
        gpus: (used, total) bytes of memory of each GPU, by its name in CUDA_VISIBLE_DEVICES.

    Raises:
        ConfigError: The model does not fit; with what would.
    """
    if not gpus or config.engine != "vllm" or config.engine_urls or _placed(config):
        return config
    if config.share_gpu and len(gpus) > 1:
        return config
    try:
        shape = ModelShape.find(base.path)
    except ConfigError as error:
        log.warning("the GPU memory is not planned: %s. vLLM takes 0.9 of it. %s", error, _ANYWAY)
        return config
    total = min(size for _, size in gpus.values()) / GIB
    free = min(size - used for used, size in gpus.values()) / GIB
    workload = Workload(
        model=config.model,
        shape=shape,
        gpus=len(gpus),
        gpu_memory=free,
        context=_number(argument(config.engine_args, "--max-model-len")) or CONTEXT,
        rank=config.max_rank,
        policies=max(config.adapter_slots - 2, 1),
        in_4bit=argument(config.trainer_args, "--quantization") == "4bit",
        experts=EXPERTS in config.engine_args and shape.experts is not None,
    )
    plan = make_plan(workload, turns=config.share_gpu if len(gpus) == 1 else None)
    where = f"{len(gpus)} × {total:.0f} GiB of GPU memory" + (f", {free:.0f} free" if total - free >= 1 else "")
    _check(plan, where)
    share = f"{plan.utilization * free / total:.2f}"  # vLLM's is a share of all of the memory
    flags = {**plan.engine_flags, UTILIZATION_FLAG: share}
    added = [
        word for flag, value in flags.items() if argument(config.engine_args, flag) is None for word in (flag, value)
    ]
    log.info("%s: %s; vLLM gets %s. `art-langgraph plan` has the arithmetic", where, _layout(plan), " ".join(added))
    *engines, trainer = plan.spans(list(gpus)) if plan.trainer else [None]
    return replace(
        config,
        engine_gpus=tuple(filter(None, engines)),
        trainer_gpus=trainer,
        share_gpu=plan.turns,
        trainer_processes=max(plan.trainer, 1),
        trainer_shard=plan.trainer > 1,
        engine_args=(*added, *config.engine_args),
    )


def _placed(config: ServerConfig) -> bool:
    """Whether flags say where engine and trainer go."""
    by_server = config.engine_gpus or config.trainer_gpus or config.trainer_processes > 1 or config.accelerate_config
    return bool(by_server) or any(argument(config.engine_args, flag) is not None for flag in _OWN_WAY)


def _check(plan: Plan, where: str) -> None:
    """Raises ConfigError for a plan that does not fit the GPUs, or the main memory where the models rest."""
    workload = plan.workload
    if not plan.fits:
        changes = ", or with ".join(remedies(workload))
        would = f" It would with {changes}." if changes else ""
        raise ConfigError(f"--model {workload.model} does not fit {where}. {plan.shortage}{would} {_ANYWAY}")
    if plan.main_memory_gib * GIB > main_memory():
        raise ConfigError(
            f"--model {workload.model} fits {where} by turns (--share-gpu). Who waits is in main memory, which "
            f"has {main_memory() / GIB:.0f} GiB; both take {plan.main_memory_gib:.0f}. {_ANYWAY}"
        )


def _layout(plan: Plan) -> str:
    """What goes where, in words."""
    if plan.turns:
        return "engine and trainer take turns (--share-gpu)"
    if not plan.trainer:
        return f"engine and trainer beside each other, {plan.trainer_gib:.1f} GiB for the trainer"
    engines = "an engine" if plan.engines == 1 else f"{plan.engines} engines"
    each = f" on {plan.tensor} of them{' each' if plan.engines > 1 else ''}"
    return f"{engines}{each}, the trainer on {plan.trainer}"


def _number(text: str | None) -> int | None:
    """A number of tokens; None: there is none, or vLLM chooses it (`auto`)."""
    return int(text) if text and text.isdigit() else None
