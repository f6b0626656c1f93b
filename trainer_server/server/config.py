"""Options of a trainer server: those of `art-langgraph serve`, and of the environment."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainer_server.common import Home
from trainer_server.process.logs import LogSettings


def _repeatable(name: str) -> dict[str, Any]:
    """Metadata of a tuple: the option's name, which is in the singular, as it is given once for each value."""
    return {"name": name, "type": list[str] | None, "value": None, "parse": lambda values: tuple(values or ())}


def _switch(name: str, **metadata: Any) -> dict[str, Any]:
    """Metadata of an option that can be switched off, too."""
    return {"flag": f"--{name}/--no-{name}", **metadata}


_WORDS: dict[str, Any] = {"type": str, "value": "", "parse": lambda line: tuple(shlex.split(line))}
"""Metadata of a tuple that the command line gives as one quoted string."""
_SIZE: dict[str, Any] = {"min": 0, "parse": lambda gib: gib or None}
"""Metadata of a size without a limit where it is None: on the command line, 0."""
_NO_FLAG = {"flag": None}
_ONE_OR_MORE = {"min": 1}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Options of a server. The command line has one for each field but the last ones, in this order. A size without a
    limit is None here, and 0 on the command line.

    Args:
        model: `embedded` (SmolLM2-135M-Instruct from its package), a model directory, or a hub id. For tests and
            benchmarks: `testbed:NAME`.
        revision: Branch, tag or commit of a hub model. Default: its main branch.
        engine: Kind of engine: `vllm`, or `module:factory` of one that you wrote.
        engine_urls: A vLLM that runs already: http://host:port, or unix:/path; repeatable. Default: start one here.
        engine_gpus: GPUs of one engine, `0` or `2,3`; repeatable: a vLLM on each.
        trainer_gpus: GPUs of the trainer, `0` or `6,7`. Default: all.
        share_gpu: Engine and trainer use the same GPU by turns: vLLM sleeps during a step, and each may take nearly all
            memory. Default: where they do not fit beside each other.
        host: Address to listen on. Anything but loopback is reachable by others.
        port: Port to listen on; 0 takes any free one.
        allowed_hosts: A name by which clients call this server, as in their URLs; repeatable. Default: --host.
        ssl_certfile: Certificate and its chain, PEM: the server speaks HTTPS.
        ssl_keyfile: Key of --ssl-certfile. Default: it is in the same file.
        insecure: Allow a --host that others reach without a certificate: behind a proxy, in a tunnel.
        max_body_mib: Largest body of a request, MiB.
        home: State directory, for its owner only (ART_HOME, ~/.art-langgraph).
        ledger: Where completions are recorded: `sqlite`; the address of a PostgreSQL database,
            postgresql://USER@HOST/NAME; or `module:factory` of your own. Others can read command lines: put an address
            with a password into ART_LEDGER.
        gateway_of: URL of the server that trains: this one only answers, with the same --home, --ledger in PostgreSQL
            and --engine-url. Default: this one trains.
        gateways: Processes that answer completions on this port, a core each. Above 1, the server's own process answers
            all else, and writes the ledger.
        tool_call_parser: vLLM's parser of tool calls. `auto` chooses by the model's chat template and family; `none`:
            requests with tools are refused. An unknown name is answered with the list.
        reasoning_parser: vLLM's parser of thoughts, `auto`, `none` or a name. Without one, thoughts stay in the text of
            an answer.
        trust_remote_code: Let engine and trainer run Python code in the model's directory. Needed by models that
            transformers does not know; read that code first.
        engine_args: Flags passed to vLLM, as one quoted string.
        media_domains: A domain from which images and other media may be fetched; repeatable. Default: none.
        splice: Prompt the engine with the tokens that it sampled in the conversation's earlier turn, where the chat
            template would write them otherwise: `exact`, only prompts that say the same messages; `thoughts`, also keep
            thoughts that template or client leave out; `off`, never.
        turns_mib: Memory for the tokens of earlier turns, MiB: 4 bytes a token of prompt and answer, and 4 KB a turn.
        engine_env: An environment variable that vLLM gets too, by name; repeatable. By itself it gets those of the
            system, GPUs, Hugging Face and vLLM, and no keys or tokens.
        trainer_processes: Trainer processes that share each step, a GPU each.
        trainer_shard: Divide the base model among the trainer processes (FSDP2), where one GPU cannot hold it.
        accelerate_config: Start the trainer by `accelerate launch` with this configuration.
        trainer_low_priority: Leave the processor to answers: the trainer gets what others do not need. Default: without
            a GPU.
        trainer_on_demand: Start the trainer with the first job, not with the server: it takes no memory until then, and
            the first job waits until it is ready.
        losses: Another loss_type for steps, NAME=MODULE:ATTRIBUTE of a Loss; repeatable. See docs.
        teacher_urls: Another vLLM, http://host:port, that steps may name as a teacher (`distill`); repeatable. Its key
            is read from ART_TEACHER_API_KEY. Default: none; policies and the base model can always teach.
        trainer_args: Flags passed to the trainer, as one quoted string.
        trainer_env: An environment variable that the trainer gets too, by name; repeatable. See --engine-env.
        kv_cache_gib: Memory for vLLM's KV cache on CPUs, GiB. On GPUs: --engine-args.
        max_tokens: Most tokens of an answer whose request names no max_tokens.
        adapter_slots: Adapters held by each engine at once.
        max_rank: Largest LoRA rank that policies may have.
        keep_versions: Versions kept of each policy, besides its best, version 0, those in use. Default: all.
        redact: MODULE:FUNCTION that takes a text and returns what is stored instead: of prompts, answers, traces. Token
            ids are stored as they are.
        keep_days: Days for which completions and their rollouts are kept. Open jobs keep theirs.
        keep_gib: Size of the ledger above which the oldest completions are deleted before their time; 0: no limit.
        keep_jobs: Days for which jobs that have ended stay listed; then jobs/ended.jsonl has them.
        keep_jobs_gib: Size of all jobs above which those that ended first are deleted before their time; 0: no limit.
        keep_traces_gib: Size of what clients told of their runs above which the oldest of it is deleted before its
            time; 0: no limit.
        gpu_hour_price: Price of an hour of one GPU in USD, for the costs that trainings report.
        billed_gpus: GPUs that are paid for while the server runs. Default: those of this machine; unknown with
            --engine-url.
        job_time_limit: Seconds that the trainer may take for one job; a job that takes longer fails.
        logs: How the server logs.
        engine_api_key: Key of the engines at `engine_urls` (ART_ENGINE_API_KEY).
        teacher_api_key: Key of the teachers at `teacher_urls` (ART_TEACHER_API_KEY).
        trackers: Get the metrics of every job that made a version or found nothing to learn (ART_TRACKERS): names in
            `trackers.TRACKERS`, or `module:Class`.
        drain: Seconds that requests which are under way have to finish when the server stops.
        slot_wait: Seconds that a request stands in line when all adapter slots are in use.
        engine_wait: Seconds that a request waits for an engine that is starting or restarting.
        lease: Seconds that a rollout keeps its policy version after its last call.
    """

    home: Home = field(metadata={"type": Path | None, "value": None, "parse": Home.find})
    model: str = "embedded"
    revision: str | None = None
    engine: str = "vllm"
    engine_urls: tuple[str, ...] = field(default=(), metadata=_repeatable("engine_url"))
    engine_gpus: tuple[str, ...] = field(default=(), metadata=_repeatable("engine_gpus"))
    trainer_gpus: str | None = None
    share_gpu: bool | None = field(default=None, metadata=_switch("share-gpu"))
    host: str = "127.0.0.1"
    port: int = field(default=8400, metadata={"min": 0, "max": 65535})
    allowed_hosts: tuple[str, ...] = field(default=(), metadata=_repeatable("allowed_host"))
    ssl_certfile: Path | None = field(default=None, metadata={"dir_okay": False})
    ssl_keyfile: Path | None = field(default=None, metadata={"dir_okay": False})
    insecure: bool = field(default=False, metadata=_switch("insecure"))
    max_body_mib: int = field(default=64, metadata=_ONE_OR_MORE)
    ledger: str = field(default="sqlite", repr=False, metadata={"envvar": "ART_LEDGER"})  # may have a password
    gateway_of: str | None = None
    gateways: int = field(default=1, metadata={"min": 1, "max": 64})
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    trust_remote_code: bool = field(default=False, metadata={"flag": "--trust-remote-code"})
    engine_args: tuple[str, ...] = field(default=(), metadata=_WORDS)
    media_domains: tuple[str, ...] = field(default=(), metadata=_repeatable("allowed_media_domain"))
    splice: Literal["off", "exact", "thoughts"] = "exact"
    turns_mib: int = field(default=128, metadata=_ONE_OR_MORE)
    engine_env: tuple[str, ...] = field(default=(), metadata=_repeatable("engine_env"))
    trainer_processes: int = field(default=1, metadata=_ONE_OR_MORE)
    trainer_shard: bool = field(default=False, metadata=_switch("trainer-shard"))
    accelerate_config: Path | None = field(default=None, metadata={"exists": True, "dir_okay": False})
    trainer_low_priority: bool | None = field(
        default=None, metadata=_switch("trainer-low-priority", envvar="ART_TRAINER_LOW_PRIORITY")
    )
    """None: where there is no GPU. Engine and trainer that compute on the same cores wait for each other's threads, and
    answers should come first."""
    trainer_on_demand: bool = field(default=False, metadata={"flag": "--trainer-on-demand"})
    losses: tuple[str, ...] = field(default=(), metadata=_repeatable("loss"))
    teacher_urls: tuple[str, ...] = field(default=(), metadata=_repeatable("teacher_url"))
    """No request makes this server ask another address."""
    trainer_args: tuple[str, ...] = field(default=(), metadata=_WORDS)
    trainer_env: tuple[str, ...] = field(default=(), metadata=_repeatable("trainer_env"))
    kv_cache_gib: int = field(default=2, metadata=_ONE_OR_MORE)
    max_tokens: int = field(default=1024, metadata=_ONE_OR_MORE)
    adapter_slots: int = field(default=6, metadata={"min": 2})
    max_rank: int = 16
    keep_versions: int | None = field(default=None, metadata=_ONE_OR_MORE)
    redact: str | None = None
    keep_days: float = field(default=30.0, metadata=_ONE_OR_MORE)
    keep_gib: float | None = field(default=50.0, metadata=_SIZE)
    keep_jobs: float = field(default=30.0, metadata=_ONE_OR_MORE)
    keep_jobs_gib: float | None = field(default=20.0, metadata=_SIZE)
    keep_traces_gib: float | None = field(default=20.0, metadata=_SIZE)
    gpu_hour_price: float | None = field(default=None, metadata={"envvar": "ART_GPU_HOUR_PRICE", "min": 0.0})
    billed_gpus: int | None = field(default=None, metadata={"min": 0})
    job_time_limit: float = field(default=86400.0, metadata=_ONE_OR_MORE)
    logs: LogSettings = field(default_factory=LogSettings, metadata={"prefix": "log_"})
    engine_api_key: str | None = field(default=None, metadata=_NO_FLAG)
    teacher_api_key: str | None = field(default=None, metadata=_NO_FLAG)
    trackers: tuple[str, ...] = field(default=(), metadata=_NO_FLAG)
    drain: float = field(default=10.0, metadata=_NO_FLAG)
    slot_wait: float = field(default=60.0, metadata=_NO_FLAG)
    engine_wait: float = field(default=180.0, metadata=_NO_FLAG)
    lease: float = field(default=900.0, metadata=_NO_FLAG)

    @property
    def trains(self) -> bool:
        """Whether this server trains, and decides what policies' names mean."""
        return self.gateway_of is None

    @property
    def shares_engines(self) -> bool:
        """Whether other servers of a fleet can ask the engines too."""
        return bool(self.engine_urls) and not self.share_gpu
