"""How vLLM is started here: its command line and its environment."""

from __future__ import annotations

import logging
import os
import random
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from trainer_server.common import tracing
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm.install import PLUGINS, engine_python
from trainer_server.engines.vllm.parsers import Parsers, argument
from trainer_server.process.child import inherited_environment
from trainer_server.process.hardware import cpu_dtype, flavour
from trainer_server.wire import ConfigError, EngineError
from trainer_server.wire.policies import EXPERTS, TARGETS

log = logging.getLogger("trainer_server")

NO_DOMAIN = "none.invalid"
"""A domain that does not exist. To vLLM an empty list of domains means all of them."""
_EXPERTS_READ = ("gpt_oss", "qwen3_5_moe", "qwen3_5_moe_text")
"""Types of models of which vLLM 0.32 reads adapters of experts as the trainer writes them (`is_3d_moe_weight`)."""
TRACED_AS = "art-langgraph-engine"
"""`service.name` of vLLM's spans."""
_EXPORTER = "lib/python*/site-packages/opentelemetry/exporter/otlp/proto/http"
IN_ENGINE = ("--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor")
"""The model is computed in the process of vLLM's engine. On CPUs vLLM takes a process of its own, so that its threads
can be bound to the cores of one memory node. A few cores are all in the same one, and the further process takes as long
to start as the engine: 12 of 32 s of two cores."""
_OWN_GRAPHS = ("--cudagraph", "--max-cudagraph", "--compilation", "-cc", "-O", "--enforce-eager", "--spec")
"""Beginnings of flags with which users choose vLLM's CUDA graphs, or what a step of it has."""


def command(
    settings: EngineSettings,
    listen: int | Path,
    *,
    host: str = "127.0.0.1",
    parsers: Parsers | None = None,
    fetches: bool = False,
    traces: str | None = None,
) -> list[str]:
    """The command line that starts vLLM.

    Args:
        settings: Options of `serve`. Its `args` come last, so that they override the other flags.
        listen: Where vLLM listens: a port, or the path of a Unix socket.
        host: Address that vLLM listens on, with a port.
        parsers: Parsers of tool calls and thoughts; None: no parser.
        fetches: Whether vLLM fetches adapters from the trainer server; see `fetching`.
        traces: Where vLLM sends its spans; None: to none. See `traces_endpoint`.

    Raises:
        EngineError: vLLM is not installed.
    """
    base, slots, extra = settings.base, str(settings.adapter_slots), settings.args
    files = ModelFiles(Path(base.path))
    address = ("--uds", str(listen)) if isinstance(listen, Path) else ("--host", host, "--port", str(listen))
    return [
        *(str(engine_python(settings.home.cache)), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", base.path, "--served-model-name", base.name),
        *(*address, "--api-server-count", "1"),
        *("--enable-lora", "--max-loras", slots, "--max-cpu-loras", slots),
        *("--max-lora-rank", str(settings.max_rank), "--lora-target-modules", *(files.linear_layers or TARGETS)),
        # Code that reads videos needs torchvision, which vLLM's environment for CPUs does not have.
        *(("--language-model-only",) if settings.cpu and files.reads_videos else ()),
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
        *("--uvicorn-log-level", "warning", "--enable-prompt-tokens-details"),
        *(("--middleware", "art_adapters.Fetched") if fetches else ()),
        *("--middleware", "art_key.KeyOnly"),  # the last is the first to be asked
        *("--allowed-media-domains", *(settings.media_domains or (NO_DOMAIN,))),
        *(("--enable-sleep-mode",) if settings.share_gpu else ()),
        # vLLM's prefix cache keeps whole blocks only: on CPUs of 128 tokens by default, and 32 is the least it takes.
        *(("--block-size", "32") if settings.cpu else ()),
        *(() if settings.cpu else _graph_sizes(extra)),
        *(_cpu_dtype(files) if settings.cpu else ()),
        *(IN_ENGINE if settings.cpu and small_machine() and not shares_model(extra) else ()),
        # The context of the model's configuration, or what the KV cache holds where that is less.
        *(() if argument(extra, "--max-model-len") else ("--max-model-len", "auto")),
        *(("--trust-remote-code",) if base.trust_remote_code else ()),
        *(parsers.flags if parsers else ()),
        *(("--otlp-traces-endpoint", traces) if traces else ()),
        *extra,
    ]


def _cpu_dtype(files: ModelFiles) -> tuple[str, ...]:
    """The flag for what a CPU computes in, where that is not for vLLM to choose."""
    if files.has_gated_delta:
        return ("--dtype", "bfloat16")  # also where bf16 is emulated
    return ("--dtype", "float32") if cpu_dtype() == "float32" else ()


def _graph_sizes(args: Sequence[str]) -> tuple[str, ...]:
    """The flag for the sizes of batches of which vLLM captures CUDA graphs: up to its `--max-num-seqs`.

    By itself vLLM captures all multiples of 8, and of 16 from 256 on, up to twice as many: 51 sizes for 256 requests,
    each with and without adapters, at each start. These are 19. A batch between two of them is computed as the larger
    one, which is at most a quarter larger from 32 on.

    Args:
        args: `--engine-args`. Nothing is added where they do not say how many requests there are, or choose graphs.
    """
    most = argument(args, "--max-num-seqs") or ""
    if not most.isdigit() or any(word.startswith(_OWN_GRAPHS) for word in args):
        return ()
    sizes = (1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, int(most), 64))
    return ("--cudagraph-capture-sizes", *(str(size) for size in sizes if size < int(most)), most)


def experts_refusal(base: ServedModel, args: Sequence[str]) -> str | None:
    """Why a vLLM that is started here applies no adapter to a model's experts; None: it does.

    Args:
        base: The model.
        args: `--engine-args`. With `experts` in its `--lora-target-modules`, vLLM keeps memory for them in each slot.
    """
    files = ModelFiles(Path(base.path))
    layers = files.linear_layers or TARGETS
    why = experts_obstacle(files.model_type, layers, args, gpus=flavour() != "cpu")
    return why and f"targets={EXPERTS}: {why}. Layers that get an adapter as it is: {', '.join(layers)}"


def experts_obstacle(model_type: str, layers: Sequence[str], args: Sequence[str], *, gpus: bool) -> str | None:
    """The same without the model's files, and without its layers in the text.

    Args:
        model_type: The model's type, of the whole or of its text model.
        layers: Names of the layers that get an adapter beside them.
        args: `--engine-args`.
        gpus: Whether vLLM computes on GPUs.
    """
    if not gpus:
        return "vLLM adapts experts on GPUs only"
    if model_type not in _EXPERTS_READ:
        return f"vLLM reads adapters of experts as they are written here for {', '.join(_EXPERTS_READ)} only"
    if EXPERTS in args:
        return None
    flag = f"--engine-args '--lora-target-modules {' '.join(layers)} {EXPERTS}'"
    return f"vLLM is not started for them: serve with {flag}"


def child_environment(names: Iterable[str] = ()) -> dict[str, str]:
    """The part of this process's environment that vLLM gets.

    Args:
        names: `--engine-env`: further variables.
    """
    return inherited_environment(names, ("VLLM_*", "FLASHINFER_*", "DG_*"))


def environment(settings: EngineSettings, api_key: str, gpus: str | None = None) -> dict[str, str]:
    """Environment variables with which vLLM starts, besides those that it inherits.

    Args:
        settings: Options of `serve`.
        api_key: Its key. It is not on the command line, which every user of the machine can read.
        gpus: Value of CUDA_VISIBLE_DEVICES, `0` or `2,3`; None: not set, so that all GPUs are used.
    """
    return {
        "VLLM_API_KEY": api_key,
        # What it compiles on a GPU, for the next start. Two minutes of the first one go into it.
        "VLLM_CACHE_ROOT": os.environ.get("VLLM_CACHE_ROOT", str(settings.home.cache / "vllm")),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # they would lead out of the allowed domains
        "DO_NOT_TRACK": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib),
        # vLLM reserves one core for its front end, which is too much on a small machine.
        **({"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"} if small_machine() else {}),
        # On CPUs vLLM compiles one small function, which ranks log-probabilities: with the first request, by a C++
        # compiler, without which the engine ends.
        **({"TORCHDYNAMO_DISABLE": "1"} if flavour() == "cpu" else {}),
        "PYTHONPATH": str(PLUGINS),
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1"),
        **({"CUDA_VISIBLE_DEVICES": gpus} if gpus is not None else {}),
        # vLLM's routes to sleep, which frees its GPU memory, are for its developers; the plugin art_key protects them.
        **({"VLLM_SERVER_DEV_MODE": "1"} if settings.share_gpu else {}),
    }


def fetching(url: str, cache: Path) -> dict[str, str]:
    """Environment variables with which vLLM fetches adapters from the trainer server (vllm_plugins/art_adapters.py).

    Args:
        url: The trainer server's address, as vLLM's machine sees it.
        cache: Directory of what can be made again, on vLLM's machine.

    Raises:
        ConfigError: It is no address of a server.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--adapters-from {url}: it must look like https://art.example.com:8400")
    return {"ART_ADAPTERS_FROM": url, "ART_ADAPTERS": str(cache / "adapters")}


def traces_endpoint(cache: Path, variables: Mapping[str, str] = os.environ) -> str | None:
    """The address to which vLLM sends its spans: that of the server, so that they are in the traces of requests.

    Args:
        cache: Directory that has vLLM's environment.
        variables: Of the server's environment.

    Returns:
        None: traces are off, no variable names a collector, or vLLM's environment has no exporter, which is logged.

    Raises:
        EngineError: vLLM is not installed.
        ConfigError: ART_OTEL is neither 0 nor 1.
    """
    whole = variables.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").rstrip("/")
    endpoint = variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or (f"{whole}/v1/traces" if whole else None)
    if endpoint is None or not tracing.wanted(variables):
        return None
    python = engine_python(cache)
    if not any(python.parents[1].glob(_EXPORTER)):
        log.warning(
            "vLLM sends no spans: run `%s -m pip install opentelemetry-sdk opentelemetry-exporter-otlp`", python
        )
        return None
    return endpoint


def traces_environment(endpoint: str | None) -> dict[str, str]:
    """Environment variables of a vLLM that sends spans. endpoint: as `traces_endpoint` returns it."""
    if endpoint is None:
        return {}
    return {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_SERVICE_NAME": TRACED_AS}


def small_machine() -> bool:
    """Whether this machine has so few cores that vLLM's front end, engine and model share them."""
    return (os.cpu_count() or 1) <= 4


def shares_model(extra: Sequence[str]) -> bool:
    """Whether vLLM's flags distribute the model over processes, or name what does."""
    names = ("--distributed-executor-backend", "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp")
    return any(argument(extra, name) is not None for name in names)


def free_port() -> int:
    """A port on the loopback interface that no process uses now.

    It is below the ports of outgoing connections: none of these takes it before a server listens there, or while a
    server that was killed is started again.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EngineError("100 ports between 20000 and 32000 are in use: end some of the servers on this machine")
