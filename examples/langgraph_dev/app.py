"""Runs the app by `langgraph dev`, and uses its API as Studio does: threads, runs, and what people say of them."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from art_examples.learning.child import child, trained

from trainer_server.wire import ConfigError

FILES = ("graph.py", "langgraph.json", "langgraph.art.json")


@contextmanager
def langgraph_dev(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Runs `langgraph dev` on a copy of the app until the block is left. Yields its address.

    Args:
        folder: An empty directory for the copy, the log and the app's state.
        environment: Environment variables for the app, besides those of this process.

    Raises:
        ConfigError: `langgraph` is not installed.
        EngineError: It does not start.
    """
    program = shutil.which("langgraph", path=Path(sys.executable).parent) or shutil.which("langgraph")
    if program is None:
        raise ConfigError("langgraph is not installed: pip install 'langgraph-cli[inmem]'")
    for name in FILES:
        shutil.copy(Path(__file__).with_name(name), folder)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = ["--config", "langgraph.art.json", "--no-browser", "--no-reload", "--port", str(port)]
    quiet = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGGRAPH_NO_VERSION_CHECK": "true", "LANGSMITH_TRACING": "false"}
    url = f"http://127.0.0.1:{port}"
    with child([program, "dev", *options], f"{url}/ok", folder / "dev.log", {**quiet, **environment}, folder):
        yield url


def train_from_store(policy: str, lr: float, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """`art-langgraph train --from-store`, as a person types it.

    Args:
        policy: The policy.
        lr: The learning rate.
        environment: Environment variables that name the server and the store.

    Returns:
        What the step came to, as JSON. None: there was nothing to learn; the command has said why.

    Raises:
        TrainingError: The command failed.
    """
    command = [str(Path(sys.executable).with_name("art-langgraph")), "train", "--from-store", "--policy", policy]
    return trained([*command, "--lr", str(lr), "--json"], environment)
