"""Downloads a directory from the server as a tar stream. Either all files arrive, or none."""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from art_langgraph.progress import progress_bar
from trainer_server.wire import ConfigError, ServerError, ServerUnreachable

_PATIENCE = 3600.0
"""Seconds until the first byte: a large model is merged before it is sent."""
_MODEL_FILES = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "config.json",
    "model.safetensors.index.json",
    "model*.safetensors",
    "model.gguf",
)
"""Files of one export format or another that say which model a directory holds."""


async def fetch(
    http: httpx.AsyncClient,
    path: str,
    params: Mapping[str, str],
    directory: Path,
    *,
    error_reader: Callable[[httpx.Response], ServerError],
    progress: bool,
) -> Path:
    """Downloads a tar stream and unpacks it into a directory.

    Args:
        http: Client of the server.
        path: Path of the request.
        params: Query parameters of the request.
        directory: Where the files go; created if it is missing. It gets all the files or none.
        error_reader: Makes an exception of an error response.
        progress: Shows a bar on the terminal.

    Returns:
        The directory.

    Raises:
        ServerError: The server refused; made by `error_reader`.
        ServerUnreachable: The connection broke.
        ConfigError: The directory cannot be written.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            with progress_bar(*columns, shown=progress) as bar:
                task = bar.add_task(f"the server prepares {directory.name}", total=None)
                timeout = httpx.Timeout(_PATIENCE, connect=5.0)
                async with http.stream("GET", path, params=params, timeout=timeout) as answer:
                    if not answer.is_success:
                        await answer.aread()
                        raise error_reader(answer)
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
    """Unpacks beside the directory, then moves the files in.

    Files that another export format left there go: the directory holds one model, not a mixture of two.

    Raises:
        ConfigError: A folder stands where a file belongs; nothing was written.
    """
    source = aside / "files"
    source.mkdir()
    with tarfile.open(aside / "all.tar") as archive:
        for member in archive:
            _extract(archive, member, source)
    (aside / "all.tar").unlink()
    files = [file.relative_to(source) for file in source.rglob("*") if not file.is_dir()]
    if folders := [directory / file for file in files if (directory / file).is_dir()]:
        raise ConfigError(
            f"{folders[0]} is a folder, and the export has a file of that name: remove it, or give another directory; "
            "nothing was written"
        )
    for file in files:
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(source / file, directory / file)
    for pattern in _MODEL_FILES:
        for old in directory.glob(pattern):
            if old.relative_to(directory) not in files and not old.is_dir():
                old.unlink()


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Writes a member below the folder. `extractall(filter="data")` is missing before Python 3.11.4, and permits more:
    an export has neither links nor devices, and its modes are those of the user's umask.

    Raises:
        tarfile.ExtractError: The member is neither a file nor a folder, or lies outside of the folder.
    """
    target = (folder / member.name).resolve()
    if not (target.is_relative_to(folder.resolve()) and (member.isfile() or member.isdir())):
        raise tarfile.ExtractError(f"the server sent {member.name!r}, which is no file or folder of an export")
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    content = archive.extractfile(member)
    assert content is not None  # as it is for links and folders only
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
