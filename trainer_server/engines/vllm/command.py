"""How vLLM is started here: its command line and its environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm.install import engine_python
from trainer_server.wire import Home

PLUGINS = Path(__file__).parent / "plugins"


def command(
    base: ServedModel,
    home: Home,
    port: int,
    *,
    max_loras: int,
    max_rank: int,
    cpu: bool,
    extra: Sequence[str] = (),
    host: str = "127.0.0.1",
    sleeps: bool = False,
) -> list[str]:
    """The command line that starts vLLM.

    Args:
        base: The model to serve.
        home: The server's home: vLLM's environment is found through it.
        port: Where vLLM listens.
        max_loras: Adapters that it holds at once.
        max_rank: Largest LoRA rank that it takes.
        cpu: Whether it computes on the CPU.
        extra: `--engine-args`. They come last, so that they win.
        host: Address that vLLM listens on.
        sleeps: Whether it must be able to sleep; see `environment`.

    Raises:
        EngineError: vLLM is not installed.
    """
    return [
        str(engine_python(home.cache)), "-m", "vllm.entrypoints.openai.api_server",
        "--model", base.path, "--served-model-name", base.name,
        "--host", host, "--port", str(port), "--api-server-count", "1",
        "--enable-lora", "--max-loras", str(max_loras), "--max-cpu-loras", str(max_loras),
        "--max-lora-rank", str(max_rank),
        "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm",
        "--uvicorn-log-level", "warning", "--middleware", "art_key.KeyOnly",
        *(("--enable-sleep-mode",) if sleeps else ()),
        *(("--max-model-len", "8192") if cpu and base.name == "SmolLM2-135M-Instruct" else ()),
        *base.engine_args, *extra,
    ]  # fmt: skip


def environment(
    base: ServedModel, api_key: str, *, kv_cache_gib: int, gpus: str | None = None, sleeps: bool = False
) -> dict[str, str]:
    """Environment variables of a vLLM.

    Args:
        base: The model to serve.
        api_key: Its key. It stays off the command line, where every user of the machine could read it.
        kv_cache_gib: Memory for the KV cache on CPUs, GiB.
        gpus: What CUDA_VISIBLE_DEVICES says, `0` or `2,3`; None: all that there are.
        sleeps: Whether vLLM can be told to give its GPU memory away for a while. vLLM has that among its development
            routes, which the plugin art_key.py guards.
    """
    return {
        "VLLM_API_KEY": api_key,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        # vLLM keeps one core free for its own front end: of two cores, half the machine.
        **({"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"} if (os.cpu_count() or 1) <= 4 else {}),
        "PYTHONPATH": str(PLUGINS),
        **({"HF_HUB_OFFLINE": "1"} if base.local else {}),
        **({"CUDA_VISIBLE_DEVICES": gpus} if gpus is not None else {}),
        **({"VLLM_SERVER_DEV_MODE": "1"} if sleeps else {}),
    }


def free_port() -> int:
    """A port on the loopback interface that nobody uses right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
