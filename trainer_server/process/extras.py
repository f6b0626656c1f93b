"""What the server side needs beyond the light client."""

from __future__ import annotations

from importlib.util import find_spec

from trainer_server.wire import ConfigError

SERVER = ("fastapi", "uvicorn", "torch", "transformers", "peft", "safetensors", "gguf")


def require(*modules: str, extra: str) -> None:
    """Raises ConfigError with the command that helps when a module is not installed. Imports nothing."""
    if missing := [module for module in modules if find_spec(module) is None]:
        raise ConfigError(f"not installed: {', '.join(missing)}. Install them: pip install 'art-langgraph[{extra}]'")
