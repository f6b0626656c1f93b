"""Runs the server in the foreground: claims its home, writes its address, serves until a signal stops it."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import json
import logging
import math
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from trainer_server.common import Home, tracing
from trainer_server.engines.registry import check_installed
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.registry import open_trainer_lock, secrets_of
from trainer_server.process import logs
from trainer_server.process.files import write_atomic
from trainer_server.server.access.auth import ensure_token
from trainer_server.server.access.connections import (
    KEEP_ALIVE,
    DrainingServer,
    Limits,
    patient_protocol,
    raise_file_limit,
)
from trainer_server.server.access.exposure import address_of, check_exposure, proxies_named
from trainer_server.server.app import SERVICE, check_engines, create_app
from trainer_server.server.config import ServerConfig
from trainer_server.server.gateways.processes import GatewayProcesses, GatewaysServer
from trainer_server.server.server import check_names, plan_gpus
from trainer_server.wire import ConfigError

log = logging.getLogger("trainer_server")

SWITCH_INTERVAL = 0.0005
"""Seconds for which a thread computes while another one waits. Python's 5 ms would delay each answer several times: it
waits for the thread that writes the ledger."""
_ENDING = 5
"""Seconds that streams have to say that they end, after those in which they could finish. They do so when the engine
sends their next token."""


def serve(config: ServerConfig) -> None:
    """Serves until SIGINT or SIGTERM; its children end with it.

    Raises:
        ConfigError, EngineError, LedgerError: Settings that cannot work; raised before it serves.
        LedgerError: The database was away, and another server may train; raised after it has served.
    """
    logs.configure(config.logs)
    logs.secrets.keep(config.engine_api_key, config.teacher_api_key, *secrets_of(config.ledger))
    if tracing.on(SERVICE):
        logs.context.append(tracing.ids)
    raise_file_limit()
    home = config.home
    check_names(config)  # before the model is downloaded
    check_exposure(config)
    if not config.engine_urls:
        check_installed(config.engine, home.cache)  # before the model is downloaded, which may take long
    os.umask(0o077)  # texts of users are in the ledger, the jobs and the logs; the trainer and vLLM inherit this
    if warning := home.make_private():
        log.warning("%s", warning)
    _check_writable(home)
    with _sole_trainer(config) if config.trains else nullcontext():
        _serve(config)


def _serve(config: ServerConfig) -> None:
    home = config.home
    listeners = [listen(config)] if config.gateways == 1 else _listen_together(config)
    config = dataclasses.replace(config, port=listeners[0].getsockname()[1])
    try:
        asyncio.run(check_engines(config))
        config = plan_gpus(config)
        token = ensure_token(config.home)
        logs.secrets.keep(token)
        app = create_app(config, token)
        url = address_of(config)
        if config.trains:
            write_atomic(home.server, json.dumps({"url": url, "pid": os.getpid()}))
        log.info("serving on %s; token in %s", url, "ART_API_KEY" if os.environ.get("ART_API_KEY") else home.token)
        if home.connection.exists():
            log.warning("programs of this home ask another server (`art-langgraph connect`), until `disconnect`")
        settings = uvicorn_config(app, config)
        sys.setswitchinterval(SWITCH_INTERVAL)
        end = app.state.server.gateway.stopping.set
        begin = app.state.server.ending.set
        if config.gateways == 1:
            DrainingServer(settings, grace=config.drain, end=end, begin=begin).run(sockets=listeners)
        else:
            processes = GatewayProcesses(app.state.server, app, token, listeners)
            GatewaysServer(processes, settings, grace=config.drain, end=end, begin=begin).run(sockets=[])
    finally:
        for listener in listeners:
            listener.close()
        if config.trains:
            _forget_address(home)


def uvicorn_config(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    """What uvicorn serves an application with."""
    return uvicorn.Config(
        app,
        http=patient_protocol(Limits.here().connections),
        ws="none",
        log_config=None,  # its lines go where all others go
        log_level="warning",
        access_log=False,
        proxy_headers=proxies_named(),
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        timeout_keep_alive=math.ceil(KEEP_ALIVE),
        timeout_graceful_shutdown=math.ceil(config.drain + _ENDING),
    )


def _check_writable(home: Home) -> None:
    """Raises ConfigError for a home in which no file can be written: a disk that is mounted to be read, or full."""
    try:
        with tempfile.TemporaryFile(dir=home.root) as file:
            file.write(b"written")
    except OSError as error:
        raise ConfigError(
            f"the home {home.root} cannot be written ({error}): name another directory with --home or ART_HOME, or "
            "make it writable"
        ) from None


def _forget_address(home: Home) -> None:
    """Deletes the address of this server, and of no other one."""
    try:
        if json.loads(home.server.read_text())["pid"] == os.getpid():
            home.server.unlink()
    except (OSError, ValueError, KeyError):
        return


@contextmanager
def _sole_trainer(config: ServerConfig) -> Iterator[None]:
    """No other server trains on the database, or uses the home, while the context is open.

    If this one loses the database, it stops as after a signal, and raises a LedgerError: supervisors start a server
    again that has failed, and none that a signal stopped.
    """
    lock, root = open_trainer_lock(config.ledger, config.home), config.home.root
    with ExitStack() as stack:
        if lock is not None:
            stack.callback(lock.release)
            if not lock.acquire():
                raise ConfigError(
                    f"{lock.label} is used by another server ({lock.holder()}): stop it, give this one a database of "
                    "its own, or let this one only answer beside it with --gateway-of URL, that server's URL"
                )
            lock.watch(partial(os.kill, os.getpid(), signal.SIGINT))
        file = stack.enter_context((root / "lock").open("w"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another server is using {root}: stop it, or choose another --home") from None
        try:
            yield
        except KeyboardInterrupt:
            if lock is not None and lock.loss is not None:
                raise LedgerError(lock.loss) from None
            raise


def _listen_together(config: ServerConfig) -> list[socket.socket]:
    """A socket for each gateway process, all on one port: the kernel divides connections among them.

    Raises:
        ConfigError: This system has no such sockets, or another process has the port.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError(
            f"--gateways {config.gateways}: this system has no SO_REUSEPORT, by which several processes listen on one "
            "port. Serve with --gateways 1"
        )
    with listen(config) as alone:  # refuses a port that another server shares in this way
        config = dataclasses.replace(config, port=alone.getsockname()[1])
    listeners: list[socket.socket] = []
    try:
        for _ in range(config.gateways):
            listeners.append(listen(config, shares=True))
    except ConfigError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def listen(config: ServerConfig, *, shares: bool = False) -> socket.socket:
    """A socket at host and port of a server. shares: whether other sockets of this server have the port too.

    Raises:
        ConfigError: Another process has the port, or this machine has no such address.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shares:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror}; choose another --port"
        ) from None
    return listener
