"""Checks of the machine: is vLLM installed, is the trainer's side installed, what computes, and is there room."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from trainer_server.common import Home
from trainer_server.doctor.finding import Finding, State
from trainer_server.engines.base import missing_text
from trainer_server.engines.vllm import install
from trainer_server.engines.vllm.registry import WHOLE_ADAPTERS, Registry, registry
from trainer_server.process.cpu_torch import SERVER, pip_command
from trainer_server.process.hardware import GIB, free_disk, gpu_memory, main_memory
from trainer_server.wire import EngineError

_SUBJECT = "environment"
_LITTLE_DISK = 2 * GIB
"""Free bytes of the home's disk below which the ledger and the versions will soon have no room."""


def check_environment(home: Home) -> tuple[list[Finding], Registry | None]:
    """Checks this machine.

    Args:
        home: The server's home.

    Returns:
        The findings, and the registry of the installed vLLM: its architectures and parsers; None: it cannot be read.
    """
    engine, vllm_registry = _engine(home.cache)
    plugins = _plugins(vllm_registry) if vllm_registry else []
    return [engine, *plugins, _trainer(), _processor(), _disk(home)], vllm_registry


def _engine(cache: Path) -> tuple[Finding, Registry | None]:
    installation = install.status(cache)
    if installation is None:
        text = f"vLLM is not installed in {install.directory(cache)}"
        return Finding(_SUBJECT, "vLLM", State.failed, text, "art-langgraph engine install"), None
    try:
        vllm_registry = registry(cache)
    except EngineError as error:
        return Finding(_SUBJECT, "vLLM", State.failed, str(error), "art-langgraph engine install"), None
    text = f"vLLM {vllm_registry.version} ({installation.flavour}) in {installation.directory}"
    return Finding(_SUBJECT, "vLLM", State.ok, text), vllm_registry


def _plugins(vllm_registry: Registry) -> list[Finding]:
    """What the plugins of this project do not find in the installed vLLM."""
    if not vllm_registry.missing:
        return [
            Finding(
                _SUBJECT, "plugins", State.ok, f"vLLM {vllm_registry.version} has all that the plugins change in it"
            )
        ]
    fatal = any(feature in vllm_registry.missing for feature in WHOLE_ADAPTERS)
    text, remedy = missing_text(vllm_registry.missing), "art-langgraph engine install"
    if fatal:
        text = (
            f"vLLM {vllm_registry.version} is not used, as it could apply half of an adapter unseen. "
            f"It goes without {text}"
        )
        return [Finding(_SUBJECT, "plugins", State.failed, text, remedy)]
    return [Finding(_SUBJECT, "plugins", State.warning, f"vLLM {vllm_registry.version} goes without {text}", remedy)]


def _trainer() -> Finding:
    if missing := [module for module in SERVER if find_spec(module) is None]:
        text = f"not installed: {', '.join(missing)}"
        return Finding(_SUBJECT, "trainer", State.failed, text, pip_command("server"))
    return Finding(_SUBJECT, "trainer", State.ok, "the packages of server and trainer are installed")


def _processor() -> Finding:
    memory = main_memory() / GIB
    if gpus := gpu_memory():
        sizes = ", ".join(f"{size / GIB:.0f} GiB" for size in gpus)
        return Finding(_SUBJECT, "processor", State.ok, f"{len(gpus)} GPU ({sizes}), {memory:.0f} GiB of main memory")
    text = f"no NVIDIA GPU: engine and trainer compute on the processor, with {memory:.0f} GiB of main memory"
    return Finding(_SUBJECT, "processor", State.ok, text)


def _disk(home: Home) -> Finding:
    free = free_disk(home.root)
    text = f"{free / GIB:.1f} GiB are free for ledger and versions in {home.root}"
    if free < _LITTLE_DISK:
        return Finding(_SUBJECT, "disk", State.warning, text, "make room, or take another --home")
    return Finding(_SUBJECT, "disk", State.ok, text)
