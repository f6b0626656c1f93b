"""Runs the server in the foreground: claims its home, writes its address, serves until it is told to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import json
import logging
import math
import os
import socket

import uvicorn

from trainer_server.engines.vllm.install import engine_python
from trainer_server.ledger.registry import secrets_of
from trainer_server.process import logs
from trainer_server.process.files import write_atomic
from trainer_server.server.access.auth import ensure_token
from trainer_server.server.access.connections import DrainingServer, Limits, patient_protocol, raise_file_limit
from trainer_server.server.access.exposure import address_of, check_exposure
from trainer_server.server.app import SERVICE, check_engines, create_app
from trainer_server.server.config import ServerConfig
from trainer_server.server.server import check_names
from trainer_server.wire import ConfigError
from trainer_server.wire.watching import tracing

log = logging.getLogger("trainer_server")

_ENDING = 5
"""Seconds that streams have to say that they end, after those in which they could finish. They do so when the engine
sends their next token."""


def serve(config: ServerConfig) -> None:
    """Serves until SIGINT or SIGTERM; its children end with it.

    Raises:
        ConfigError, EngineError, LedgerError: Settings that cannot work; raised before it serves.
    """
    logs.configure(config.logs)
    logs.secrets.keep(config.engine_api_key, config.teacher_api_key, *secrets_of(config.ledger))
    if tracing.on(SERVICE):
        logs.context.append(tracing.ids)
    raise_file_limit()
    home = config.home
    check_names(config)  # before the model is downloaded
    check_exposure(config)
    if config.engine == "vllm" and not config.engine_urls:
        engine_python(home.cache)  # raises EngineError; before the model is downloaded, which may take long
    os.umask(0o077)  # texts of users are in the ledger, the jobs and the logs; the trainer and vLLM inherit this
    if told := home.make_private():
        log.warning("%s", told)
    lock = (home.root / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(f"another server is using {home.root}: stop it, or choose another --home") from None
    listener = _listen(config)
    config = dataclasses.replace(config, port=listener.getsockname()[1])
    try:
        asyncio.run(check_engines(config))
        token = ensure_token(config.home)
        logs.secrets.keep(token)
        app = create_app(config, token)
        url = address_of(config)
        write_atomic(home.server, json.dumps({"url": url, "pid": os.getpid()}))
        log.info("serving on %s; token in %s", url, home.token)
        if home.connection.exists():
            log.warning("programs of this home ask another server (`art-langgraph connect`), until `disconnect`")
        settings = uvicorn.Config(
            app,
            http=patient_protocol(Limits.here().connections),
            ws="none",
            log_config=None,  # its lines go where all others go
            log_level="warning",
            access_log=False,
            ssl_certfile=config.ssl_certfile,
            ssl_keyfile=config.ssl_keyfile,
            timeout_graceful_shutdown=math.ceil(config.drain + _ENDING),
        )
        end = app.state.server.gateway.stopping.set
        begin = app.state.server.ending.set
        DrainingServer(settings, grace=config.drain, end=end, begin=begin).run(sockets=[listener])
    finally:
        listener.close()
        home.server.unlink(missing_ok=True)
        lock.close()


def _listen(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror}; choose another --port"
        ) from None
    return listener
