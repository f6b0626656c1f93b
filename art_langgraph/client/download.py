"""A directory from the server, as a stream in tar format: whole or not at all."""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from trainer_server.wire import ConfigError, ServerError, ServerUnreachable

_PATIENCE = 3600.0
"""Seconds until the first byte: a large model is merged before it is sent."""


async def fetch(
    http: httpx.AsyncClient, path: str, params: Mapping[str, str], directory: Path, *,
    refused: Callable[[httpx.Response], ServerError], progress: bool,
) -> Path:  # fmt: skip
    """Puts the files that `path` answers into `directory`, which is made. Raises what `refused` makes of an error
    answer, ServerUnreachable for a connection that breaks, ConfigError for a directory that cannot be written."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            with Progress(*columns, transient=True, disable=not progress) as bar:
                task = bar.add_task(f"the server prepares {directory.name}", total=None)
                timeout = httpx.Timeout(_PATIENCE, connect=5.0)
                async with http.stream("GET", path, params=params, timeout=timeout) as answer:
                    if not answer.is_success:
                        await answer.aread()
                        raise refused(answer)
                    total = int(answer.headers.get("content-length", 0)) or None
                    bar.update(task, description=f"loading {directory.name}", total=total)
                    with (aside / "all.tar").open("wb") as file:
                        async for chunk in answer.aiter_bytes():
                            file.write(chunk)
                            bar.advance(task, len(chunk))
            await asyncio.to_thread(_unpack, aside, directory)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except httpx.TransportError as error:
        raise ServerUnreachable(f"the connection broke ({error!r}); nothing was written: ask again") from error
    except (OSError, tarfile.TarError) as error:
        raise ConfigError(f"{directory} could not be written: {error}") from error
    return directory


def _unpack(aside: Path, directory: Path) -> None:
    files = aside / "files"
    with tarfile.open(aside / "all.tar") as archive:
        archive.extractall(files, filter="data")
    (aside / "all.tar").unlink()
    directory.mkdir(exist_ok=True)
    for file in files.iterdir():
        os.replace(file, directory / file.name)
