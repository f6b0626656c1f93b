"""All checks of `art-langgraph doctor`, in their order."""

from __future__ import annotations

from collections.abc import Sequence

from trainer_server.common import Home
from trainer_server.doctor.environment import check_environment
from trainer_server.doctor.finding import Finding, State
from trainer_server.doctor.model import (
    check_architecture,
    check_context,
    check_files,
    check_memory,
    check_own_code,
    check_parsers,
    locate,
    shape_of,
)
from trainer_server.doctor.training import check_training
from trainer_server.engines.package_models import PACKAGE_MODELS
from trainer_server.engines.vllm.parsers import AUTO, choose_parsers
from trainer_server.process.cpu_torch import pip_command
from trainer_server.process.hardware import flavour
from trainer_server.wire import ConfigError, EngineError
from trainer_server.wire.policies import EXPERTS


def examine(
    model: str,
    home: Home,
    *,
    revision: str | None = None,
    rank: int = 16,
    gpus: int | None = None,
    gpu_gib: float | None = None,
    trust_remote_code: bool = False,
    tools: str = AUTO,
    reasoning: str = AUTO,
    engine_args: Sequence[str] = (),
) -> list[Finding]:
    """Examines this machine and a model.

    Args:
        model: As `serve --model` takes it. Of a hub model, everything but the weights is downloaded.
        home: The server's home.
        revision: As `serve` has it.
        rank: Largest LoRA rank that policies may have.
        gpus: Number of GPUs to compute for; None: those of this machine.
        gpu_gib: Memory of each, GiB; None: as they have.
        trust_remote_code: As `serve` has it.
        tools: `--tool-call-parser`, as `serve` has it.
        reasoning: `--reasoning-parser`, as `serve` has it.
        engine_args: As `serve` has them.

    Returns:
        The findings. A check that needs the result of a failed one is left out.
    """
    findings, vllm_registry = check_environment(home)
    no_trainer = any(finding.check == "trainer" and finding.state == State.failed for finding in findings)
    try:
        location = locate(model, revision, home.cache)
        files = location.files
        shape = shape_of(files)
        files.template  # noqa: B018 - read now, so that a broken file is found here
    except (ConfigError, EngineError) as error:
        return [*findings, _unreadable(model, error, no_trainer)]
    findings.append(check_files(location, shape))
    findings.append(check_architecture(files, vllm_registry))
    if own_code := check_own_code(files, vllm_registry, trust_remote_code):
        findings.append(own_code)
    experts = EXPERTS in engine_args
    findings.append(check_memory(model, files, shape, rank=rank, gpus=gpus, gpu_gib=gpu_gib, experts=experts))
    findings.append(check_context(files, shape))
    try:
        parsers = choose_parsers(files, vllm_registry, tools=tools, reasoning=reasoning, args=engine_args)
    except ConfigError as error:
        return [*findings, Finding("parse", "tool calls", State.failed, str(error))]
    findings += check_parsers(parsers, files)
    if no_trainer:
        return findings
    findings += check_training(
        files,
        parsers,
        home,
        rank=rank,
        trust_remote_code=trust_remote_code,
        engine_args=engine_args,
        gpus=gpus is not None or flavour() != "cpu",
    )
    return findings


def _unreadable(model: str, error: Exception, no_trainer: bool) -> Finding:
    """A model of which there are no files. Those of packages are made by the packages of the server."""
    if model in PACKAGE_MODELS and no_trainer:
        remedy = pip_command("server")
        return Finding(
            "serve", "files", State.failed, f"the model {model} cannot be made without these packages", remedy
        )
    return Finding("serve", "files", State.failed, str(error))
