"""Settings of a trainer server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trainer_server.common import Home
from trainer_server.process.logs import LogSettings


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What `art-langgraph serve` was asked for."""

    home: Home
    model: str = "embedded"
    revision: str | None = None
    """Branch, tag or commit of a hub model; None: its main branch."""
    host: str = "127.0.0.1"
    port: int = 8400
    """0: any free port; the one taken is in `home/server.json`."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in the Host header by which clients may call the server, besides `host` and those of the loopback
    interface."""
    ssl_certfile: Path | None = None
    """Certificate and its chain, PEM; None: requests are not encrypted."""
    ssl_keyfile: Path | None = None
    """Its key; None: it is in `ssl_certfile`."""
    insecure: bool = False
    """Whether the server may listen on other addresses than loopback without a certificate."""
    max_body_mib: int = 64
    """Largest body of a request, MiB."""
    logs: LogSettings = field(default_factory=LogSettings)
    drain: float = 10.0
    """Seconds that requests which are under way have to finish when the server is told to stop."""
    ledger: str = field(default="sqlite", repr=False)
    """Where completions are recorded: a name in `ledger.registry.LEDGERS`, `postgresql://…`, or `module:factory`."""
    gateway_of: str | None = None
    """URL of the server that trains with the same home, database and engines, while this one only answers; None: this
    one trains."""
    engine: str = "vllm"
    """The kind of engine: a name in `engines.registry.ENGINES`, or `module:factory`."""
    engine_urls: tuple[str, ...] = ()
    """vLLM servers that run elsewhere; empty: launched here."""
    engine_api_key: str | None = None
    """Key of the servers at `engine_urls`."""
    engine_gpus: tuple[str, ...] = ()
    """One engine is launched for each, on these GPUs: `0`, or `2,3` with tensor parallelism. Empty: one, on all."""
    teacher_urls: tuple[str, ...] = ()
    """Addresses of other vLLM servers that steps may name as teachers; empty: none. A request makes this server ask no
    other address."""
    teacher_api_key: str | None = None
    """Key of the servers at `teacher_urls`."""
    trainer_gpus: str | None = None
    """GPUs of the trainer, as in CUDA_VISIBLE_DEVICES; None: all."""
    engine_args: tuple[str, ...] = ()
    """Passed to vLLM as they are."""
    media_domains: tuple[str, ...] = ()
    """Domains from which engines may fetch images and other media that a request names by address; empty: none."""
    tool_call_parser: str = "auto"
    """Which parser of the engine reads tool calls. `auto`: chosen by the model's files; `none`: no parser."""
    reasoning_parser: str = "auto"
    """Which parser of the engine separates thoughts from answers; as `tool_call_parser`."""
    trust_remote_code: bool = False
    """Whether engines and trainer may run Python code in the model's directory."""
    engine_env: tuple[str, ...] = ()
    """Names of environment variables that vLLM gets besides those in `process.child.INHERITED`."""
    adapter_slots: int = 6
    """Adapters that one engine holds at once: live versions of all policies, and one for the next."""
    max_rank: int = 16
    """Largest LoRA rank that the engine takes."""
    slot_wait: float = 60.0
    """Seconds that a request stands in line when all adapter slots are in use."""
    splice: str = "exact"
    """Which prompts begin with the tokens of the conversation's earlier turn: a `SpliceMode`."""
    turns_mib: int = 128
    """Size of the tokens that are remembered for that, MiB; the turns that were used least recently are forgotten."""
    kv_cache_gib: int = 2
    """vLLM's KV cache on CPUs, GiB."""
    max_tokens: int = 1024
    """Length of an answer when a request names none; recorded in the ledger."""
    engine_wait: float = 180.0
    """Seconds that a request waits for an engine that is starting or restarting."""
    lease: float = 900.0
    """Seconds that a rollout keeps its policy version after its last call."""
    keep_versions: int | None = None
    """Versions of a policy that are kept: its newest ones, and the best, version 0, and those in use; None: all."""
    redact: str | None = None
    """`module:function` that texts go through before they are stored; None: they are stored as they are."""
    keep_days: float = 30.0
    """Days for which completions, and what is known of their rollouts, are kept."""
    keep_gib: float | None = 50.0
    """Size of the ledger, GiB, above which the oldest completions are deleted before their time; None: no limit."""
    keep_jobs: float = 30.0
    """Days for which a job that has ended stays listed. Afterwards its outcome and metrics are a line of
    `home/jobs/ended.jsonl`."""
    keep_jobs_gib: float | None = 20.0
    """Size of all jobs, GiB, above which those that ended first are deleted before their time; None: no limit."""
    keep_traces_gib: float | None = 20.0
    """Size of what clients told of runs, GiB, above which the oldest of it is deleted before its time; None: no
    limit."""
    job_time_limit: float = 86400.0
    """Seconds that the trainer may take for one job. A request may ask for less."""
    trainer_processes: int = 1
    """Processes that share each step, one GPU or a part of the cores each."""
    trainer_shard: bool = False
    """Whether they divide the base model among them (FSDP2) instead of each holding it whole."""
    accelerate_config: Path | None = None
    """Configuration for `accelerate launch` instead: several machines, for example."""
    losses: tuple[str, ...] = ()
    """Losses that the trainer registers besides its own: `NAME=MODULE:ATTRIBUTE`, importable where it runs."""
    trainer_low_priority: bool | None = None
    """Whether the trainer gets only what others leave of the processor. None: where there is no GPU, since engine and
    trainer that compute on the same cores wait for each other's threads, and answers should come first."""
    trainer_on_demand: bool = False
    """Whether the trainer is started with the first job, not with the server: it takes no memory until then."""
    share_gpu: bool = False
    """Whether engines and trainer use the same GPUs by turns: engines sleep while a step is computed."""
    trainer_args: tuple[str, ...] = field(default=())
    """Passed to the trainer process as they are."""
    gpu_hour_price: float | None = None
    """Price of an hour of one GPU in USD, for the costs that clients report; None: unknown."""
    billed_gpus: int | None = None
    """GPUs that are paid for while the server runs; None: those of this machine, and unknown where engines run
    elsewhere."""
    trackers: tuple[str, ...] = ()
    """Who is told of every job that made a version or found nothing to learn: names in `trackers.TRACKERS`, or
    `module:Class`."""
    trainer_env: tuple[str, ...] = ()
    """Names of environment variables that the trainer gets besides those in `process.child.INHERITED`."""

    @property
    def trains(self) -> bool:
        """Whether this server trains, and decides what policies' names mean."""
        return self.gateway_of is None

    @property
    def shares_engines(self) -> bool:
        """Whether other servers of a fleet can ask the engines too."""
        return bool(self.engine_urls) and not self.share_gpu
