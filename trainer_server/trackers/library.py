"""Imports the library of a tracker, or says how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trainer_server.wire.errors import ConfigError


def import_library(module: str, extra: str, tracker: str) -> Any:
    """A module of another package.

    Args:
        module: Its name.
        extra: The extra of this project that brings it.
        tracker: Name of the tracker, for messages.

    Raises:
        ConfigError: It cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the tracker {tracker!r} needs {module.partition('.')[0]}, which cannot be imported ({error}). "
            f"Install it: pip install 'art-langgraph[{extra}]'"
        ) from error
