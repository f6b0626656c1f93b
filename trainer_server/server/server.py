"""The server put together: state under its home, ledger, engines, gateway and jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from trainer_server.common.extensions import PLANNING, find
from trainer_server.common.plugins import check_losses
from trainer_server.engines.base import Engine, EngineSettings
from trainer_server.engines.local_slots import LocalSlots
from trainer_server.engines.pool import Engines
from trainer_server.engines.registry import check_parsers, engine_factory
from trainer_server.engines.served_model import ServedModel, resolve
from trainer_server.engines.shared_slots import SharedSlots
from trainer_server.engines.slots import Slots
from trainer_server.gateway.gateway import Gateway
from trainer_server.gateway.parser import Parser
from trainer_server.gateway.recorder import Identity, Recorder
from trainer_server.gateway.resolver import Resolver
from trainer_server.gateway.sampler import Admission, Sampler
from trainer_server.gateway.splice.splicer import SpliceMode, Splicer
from trainer_server.gateway.splice.turns import TOKENS_OF_A_MIB, Turns
from trainer_server.jobs.queue import JobQueue
from trainer_server.jobs.service import JobOptions, JobService
from trainer_server.jobs.trainer_process import TrainerSettings
from trainer_server.ledger.archive import Archive
from trainer_server.ledger.canary_assignments import CanaryAssignments
from trainer_server.ledger.redaction import Redaction
from trainer_server.ledger.registry import is_address, ledger_factory, open_books, open_fleet, open_ledger
from trainer_server.ledger.retention_clock import RetentionClock
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.ledger.run_repository import RunRepository
from trainer_server.policies.canary import Canary
from trainer_server.policies.deployment import Deployment
from trainer_server.policies.export import Exports
from trainer_server.policies.leases import Leases, LocalLeases, SharedLeases
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.process.child import check_present, rotate_logs
from trainer_server.process.files import server_id
from trainer_server.process.hardware import flavour, gpu_count, visible_gpus
from trainer_server.process.tasks import PeriodicTask
from trainer_server.server.access.connections import Limits
from trainer_server.server.access.owners import RolloutOwners
from trainer_server.server.access.quotas import Quotas
from trainer_server.server.config import ServerConfig
from trainer_server.server.imported_completions import ImportedCompletions
from trainer_server.server.job_log import JobLog, check_trackers
from trainer_server.server.metrics.counters import Counters
from trainer_server.server.remote_runs import RemoteRunBuffer
from trainer_server.wire import ConfigError, Job

log = logging.getLogger("trainer_server")

_PURGE_INTERVAL = 3600.0
_NAMES_INTERVAL = 1.0
"""Seconds between two exchanges of what names mean between servers. Requests look it up by themselves."""


class Server:
    """Everything that lives as long as the server does.

    Args:
        config: The server's options.

    Raises:
        ConfigError, EngineError, LedgerError: Settings that cannot work.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.start_time = time.time()
        home = config.home
        check_names(config)
        self.ledger = open_ledger(config.ledger, home)  # before a model is downloaded
        self.redaction = Redaction(config.redact)
        self.books = open_books(config.ledger, home)
        self.rollouts = RolloutRepository(self.books, self.redaction)
        self.runs = RunRepository(self.books, self.redaction)
        self.owners = RolloutOwners(self.rollouts, self.ledger)
        self.draws = CanaryAssignments(self.books)
        self.retention_clock = RetentionClock(self.books, self.ledger)
        base = resolve_base(config)
        self.identity = Identity(server_id(home), base, base.tokenizer_fingerprint())
        self.fingerprint = base.fingerprint()
        self.store = AdapterStore(home.policies)
        self.fleet = open_fleet(config.ledger)
        """What this server shares with others; None: it is alone."""
        self.records = RemoteRunBuffer(config.lease)
        self.engines = Engines(make_engines(config, base))
        self.names = PolicyNames(self.store, self.fleet.pins if self.fleet else None, trains=config.trains)
        self.leases, self.slots = self._make_slots()
        self.canary = Canary(
            names=self.names, leases=self.leases, draws=self.draws, ledger=self.ledger, store=self.store
        )
        self.series = CollectorRegistry()
        """What Prometheus reads."""
        self.counters = Counters(self.series)
        self.quotas = Quotas()
        counts = (self.counters.count_completions, self.quotas.count_tokens)
        self.recorder = Recorder(self.identity, self.ledger, counts, self.redaction)
        self.imported_completions = ImportedCompletions(self.identity, self.ledger, self.redaction)
        limits = Limits.here()
        self.admission = Admission(limits.running, limits.waiting)
        self.turns = Turns(config.turns_mib * TOKENS_OF_A_MIB)
        self.gateway = self._make_gateway()
        self.job_log = JobLog(config.trackers, home.root, self.identity.server_id)
        self.creating: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By policy: one creation, promotion, deletion or change of its candidate at a time."""
        self.jobs = JobService(
            _trainer_settings(config, self.identity),
            JobQueue(home.jobs),
            Deployment(self.store, self.names, self.slots, self.engines),
            self.ledger,
            JobOptions(
                keep_versions=config.keep_versions,
                engine_wait=config.engine_wait,
                time_limit=config.job_time_limit,
                teacher_urls=config.teacher_urls,
                teacher_api_key=config.teacher_api_key,
                on_job_end=self._on_job_end,
            ),
        )
        self.exports = Exports(home, base, self.store, self.jobs.retention)
        self.archive = Archive(home.archive)
        self.erasure = asyncio.Lock()
        """One deletion at a time."""
        if config.trains:
            self._find_policies()
        self.ending = asyncio.Event()
        """Set when the server is to stop: what only watches it ends at once."""
        self.failure: str | None = None
        """Why engines could not be started."""
        self._tasks: list[asyncio.Task[None]] = []
        self._purging = PeriodicTask("deletion of what is past its time", self._purge)
        self._names_exchange = PeriodicTask("the exchange of what policies' names mean", self._exchange_names)

    def _make_slots(self) -> tuple[Leases, Slots]:
        """Leases and adapter slots, which the servers of a fleet share."""
        config = self.config
        if self.fleet:
            slots = SharedSlots(
                gateways=self.fleet.gateways,
                engines=self.engines,
                capacity=config.adapter_slots,
                directory=self.store.directory,
                alone=not config.shares_engines,
                wait=config.slot_wait,
            )
            return SharedLeases(self.fleet.pins, config.lease), slots
        leases = LocalLeases(config.lease)
        return leases, LocalSlots(
            engines=self.engines,
            capacity=config.adapter_slots,
            directory=self.store.directory,
            pinned_versions=leases.versions,
            is_named=self.names.is_named,
            wait=config.slot_wait,
        )

    def _make_gateway(self) -> Gateway:
        config, base = self.config, self.identity.base.name
        parser = Parser(
            self.ledger,
            lambda request, rollout: self.owners.check(request.scope, [rollout], begins=False),
            max_tokens=config.max_tokens,
            media_domains=config.media_domains,
        )
        resolver = Resolver(self.store, self.names, self.leases, self.canary, self.rollouts, base=base)
        splicer = Splicer(SpliceMode(config.splice), self.turns)
        sampler = Sampler(
            self.engines, self.slots, self.names, self.admission, base=base, engine_wait=config.engine_wait
        )
        return Gateway(parser, resolver, splicer, sampler, self.recorder)

    def _on_job_end(self, job: Job) -> None:
        self.counters.count_job(job)
        self.job_log.log_job(job)

    def _find_policies(self) -> None:
        """Finds out which policies can be served. One that cannot be does not keep the others from it."""
        for name in self.store.names():
            try:
                why = self._unavailable_reason(name)
            except OSError as error:  # something else stands in the place of its files
                why = f"the files of policy {name!r} cannot be used: {error}"
            if why:
                log.error("not served: %s", why)
                self.names.withhold(name, why)
            elif (version := self.jobs.served_version(name)) is not None:
                self.names.serve((name, version))
                self.names.promote(name, self.store.promoted_version(name))
                self.names.try_candidate(name, self.store.candidate(name))

    def _unavailable_reason(self, name: str) -> str | None:
        """Why a policy cannot be served, or None."""
        if name == self.identity.base.name:
            return (
                f"policy {name!r} has the name of the base model, which answers requests for it: serve the model from "
                "a directory of another name"
            )
        if why := self.store.other_base(name, self.identity.base.name, self.fingerprint):
            return why
        spec = self.store.spec(name)
        if spec and spec.rank > self.config.max_rank:
            return (
                f"policy {name!r} has rank {spec.rank}, and the engine is started for {self.config.max_rank}: "
                f"serve with --max-rank {spec.rank}"
            )
        for number, problem in self.store.broken_newest(name).items():
            log.error("%s", self.store.quarantine(name, number, problem))
        reasons = self.store.quarantine_reasons(name)
        if reasons and not self.store.versions(name):
            return f"policy {name!r} has no version that can be used: {' '.join(reasons.values())}"
        return None

    @property
    def gpus(self) -> int | None:
        """GPUs that are paid for while the server runs; None: unknown, because engines run elsewhere."""
        if self.config.billed_gpus is not None:
            return self.config.billed_gpus
        return None if self.config.engine_urls else gpu_count()

    @property
    def overlaps(self) -> bool:
        """Whether engines and trainer compute at the same time, on GPUs of their own."""
        config = self.config
        if flavour() == "cpu" or config.share_gpu:
            return False
        engines = {gpu for gpus in config.engine_gpus for gpu in gpus.split(",")}
        trainer = set((config.trainer_gpus or "").split(",")) - {""}
        return bool(config.engine_urls) or bool(engines and trainer and not engines & trainer)

    @property
    def ready(self) -> bool:
        return bool(self.engines.live)

    @property
    def trouble(self) -> str | None:
        """Why an engine or the trainer does not work, in its own words; None: no failure is known."""
        failures = (self.failure, *(engine.failure for engine in self.engines), self.jobs.failure)
        return next(filter(None, failures), None)

    async def start(self) -> None:
        """Starts the trainer process and, in the background, the engines; `/health` tells when they are ready."""
        await self.slots.start()
        if self.config.trains:
            await self.names.announce_all()
            await asyncio.to_thread(self.exports.discard_all)
            await self.jobs.start()
            self._purging.start()
        if self.fleet:
            await self.names.refresh()
            self._names_exchange.start()
        self._tasks = [asyncio.create_task(self._start_engines())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._purging.stop(), self._names_exchange.stop(), *self._tasks, return_exceptions=True)
        await asyncio.gather(self.jobs.stop(), *(engine.stop() for engine in self.engines))
        await self.slots.stop()
        if self.fleet:
            await self.fleet.gateways.leave()
        await self.job_log.close()
        await self.recorder.close()
        await asyncio.to_thread(self.ledger.close)
        await asyncio.to_thread(self.books.close)

    async def _start_engines(self) -> None:
        starts = (engine.start(log.info) for engine in self.engines)
        for error in await asyncio.gather(*starts, return_exceptions=True):
            if error is not None:
                self.failure = f"{type(error).__name__}: {error}"
                log.error("an engine could not be started", exc_info=error)

    async def _exchange_names(self) -> None:
        await (self.names.announce() if self.config.trains else self.names.refresh())
        await asyncio.sleep(_NAMES_INTERVAL)

    async def _purge(self) -> None:
        """Deletes what is past its time, then waits until it is time to look again."""
        await self._delete_old()
        await asyncio.sleep(_PURGE_INTERVAL)

    async def _delete_old(self) -> None:
        config = self.config
        try:
            lag = await asyncio.to_thread(self.retention_clock.lag) / 86400
        except Exception:  # the ages are not known: nothing is deleted
            log.exception("what is past its time could not be looked for")
            return
        days = config.keep_days + lag
        try:
            if count := await asyncio.to_thread(self._purge_completions, lag):
                log.info("%d completions past their retention were deleted from the ledger", count)
            for repository in (self.rollouts, self.runs, self.draws):
                await asyncio.to_thread(repository.purge, days)
            if count := await asyncio.to_thread(self._shed_traces):
                log.info("traces of %d runs were deleted, since all traces had more than --keep-traces-gib", count)
            if self.fleet:
                await self.fleet.pins.purge()
        except Exception:  # a full disk, say: tried again in an hour, for as long as the server lives
            log.exception("completions past their retention could not be deleted from the ledger")
        try:
            most_bytes = _bytes(config.keep_jobs_gib)
            if count := await asyncio.to_thread(self.jobs.queue.prune, config.keep_jobs, most_bytes, lag):
                log.info("%d jobs past their retention were deleted", count)
            await asyncio.to_thread(rotate_logs, config.home.logs, days)
        except Exception:
            log.exception("jobs that ended long ago, or old logs, could not be deleted")

    def _purge_completions(self, lag: float = 0.0) -> int:
        """lag: days by which the clock is ahead."""
        config, keep = self.config, self.jobs.open.completions()
        return self.ledger.purge(keep=keep, days=config.keep_days + lag, most_bytes=_bytes(config.keep_gib))

    def _shed_traces(self) -> int:
        if (most_bytes := _bytes(self.config.keep_traces_gib)) is None:
            return 0
        rows = self.ledger.read(sorted(self.jobs.open.completions())).values()
        return self.runs.shed(most_bytes, keep={row.rollout for row in rows if row.rollout})


def _trainer_settings(config: ServerConfig, identity: Identity) -> TrainerSettings:
    return TrainerSettings(
        home=config.home,
        base=identity.base,
        tokenizer=identity.tokenizer,
        ledger=config.ledger,
        gpus=config.trainer_gpus,
        processes=config.trainer_processes,
        shard=config.trainer_shard,
        accelerate_config=config.accelerate_config,
        share_gpu=bool(config.share_gpu),
        low_priority=config.trainer_low_priority,
        on_demand=config.trainer_on_demand,
        losses=config.losses,
        args=config.trainer_args,
        env=config.trainer_env,
    )


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * 2**30)


def check_names(config: ServerConfig) -> None:
    """Raises ConfigError for a kind of engine, a parser, a ledger, a loss, a function, a tracker or an environment
    variable that does not exist, and for a gateway that lacks what it shares with the server that trains. Opens and
    starts nothing; reads the list of parsers of the installed vLLM where one is named.
    """
    engine_factory(config.engine)
    ledger_factory(config.ledger)
    _check_gateway(config)
    check_present("--engine-env", config.engine_env)
    check_present("--trainer-env", config.trainer_env)
    check_losses(config.losses)
    Redaction(config.redact)
    check_trackers(config.trackers)
    if not config.engine_urls:
        parsers = {"tools": config.tool_call_parser, "reasoning": config.reasoning_parser}
        check_parsers(config.engine, config.home.cache, **parsers)


def _check_gateway(config: ServerConfig) -> None:
    if config.gateway_of is None:
        return
    option, url = f"--gateway-of {config.gateway_of}", urlsplit(config.gateway_of)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"{option}: give the URL of the server that trains, as in http://10.0.0.1:8400")
    if not is_address(config.ledger):
        raise ConfigError(
            f"{option}: servers do not share --ledger {config.ledger}: give both the same database, --ledger "
            "postgresql://… or ART_LEDGER"
        )
    if not config.engine_urls:
        raise ConfigError(f"{option}: start the engines yourself, and give both servers the same --engine-url")
    if config.share_gpu:
        raise ConfigError(
            f"{option} with --share-gpu: engines that sleep during a step answer no gateway. Leave --share-gpu out at "
            "both servers, and give the trainer a GPU of its own"
        )
    if not config.home.identity.exists():
        raise ConfigError(
            f"{option}: no server has trained with the home {config.home.root} yet. Start that server first, and give "
            "both the same --home, on a file system that both reach"
        )


def resolve_base(config: ServerConfig) -> ServedModel:
    """The base model of a server; downloads what is missing. Raises as `resolve`."""
    return resolve(
        config.model,
        config.home.cache,
        log.info,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )


def plan_gpus(config: ServerConfig) -> ServerConfig:
    """Options with the plan for the GPUs of this machine, where the options say none and planning is installed. Raises
    ConfigError for a model that does not fit, and as `resolve`."""
    placement = find(f"{PLANNING}.placement")
    if placement is None or flavour() == "cpu" or config.engine_urls:
        return config
    planned: ServerConfig = placement.place(config, resolve_base(config), visible_gpus())
    return planned


def make_engines(config: ServerConfig, base: ServedModel) -> Sequence[Engine]:
    """The engines of a server, not yet started. Raises ConfigError for settings that cannot work."""
    if config.share_gpu and (config.trainer_processes > 1 or config.accelerate_config):
        raise ConfigError("--share-gpu is for a trainer of one process; with more GPUs, give the trainer its own")
    settings = EngineSettings(
        base=base,
        home=config.home,
        cpu=flavour() == "cpu",
        urls=config.engine_urls,
        api_key=config.engine_api_key,
        gpus=config.engine_gpus,
        args=config.engine_args,
        env=config.engine_env,
        adapter_slots=config.adapter_slots,
        max_rank=config.max_rank,
        kv_cache_gib=config.kv_cache_gib,
        share_gpu=bool(config.share_gpu),
        media_domains=config.media_domains,
        tool_call_parser=config.tool_call_parser,
        reasoning_parser=config.reasoning_parser,
    )
    return engine_factory(config.engine)(settings)
