"""What the server side needs beyond the light client."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from trainer_server.process import cpu_torch
from trainer_server.process.hardware import flavour
from trainer_server.wire import ConfigError

SERVER = ("fastapi", "uvicorn", "torch", "transformers", "peft", "safetensors", "gguf")


def pip_command(extra: str) -> str:
    """The shell line that installs an extra. Without a GPU and without torch, torch for CPUs comes first."""
    command = f"pip install 'art-langgraph[{extra}]'"
    if find_spec("torch") is None and flavour() == "cpu" and sys.platform == "linux":
        return f"{cpu_torch.PIP_COMMAND} && {command}"
    return command


def require(*modules: str, extra: str) -> None:
    """Raises ConfigError with the command that helps when a module is not installed. Imports nothing."""
    if missing := [module for module in modules if find_spec(module) is None]:
        raise ConfigError(f"not installed: {', '.join(missing)}. Install them: {pip_command(extra)}")
