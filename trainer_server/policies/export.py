"""Exports versions: files are put together in a directory of their own, then streamed. No path comes from a request."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from trainer_server.common import Home
from trainer_server.engines.served_model import ServedModel
from trainer_server.policies.model_card import model_card
from trainer_server.policies.retention import Retention
from trainer_server.policies.store import AdapterStore
from trainer_server.process.child import Child, inherited_environment
from trainer_server.process.hardware import flavour
from trainer_server.wire import ARTError, ExportFormat, NotFound

_BLOCK = 512
_CHUNK = 1 << 20
_POLL_INTERVAL = 0.5
"""Seconds between looks whether the client is still there."""


class ExportFailed(ARTError):
    """A version cannot be exported in this format."""


class ExportAbandoned(ARTError):
    """The client left before its export was ready."""


@dataclass(frozen=True, slots=True)
class Export:
    """Files that are ready to be sent. They stay until `discard`."""

    directory: Path

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.directory.iterdir() if path.is_file())

    @property
    def size(self) -> int:
        """Bytes of the stream."""
        return sum(len(_head(path)) + path.stat().st_size + _padding(path) for path in self.files) + 2 * _BLOCK

    async def stream(self) -> AsyncIterator[bytes]:
        """The files in tar format."""
        for path in self.files:
            yield _head(path)
            with path.open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, _CHUNK):
                    yield chunk
            yield bytes(_padding(path))
        yield bytes(2 * _BLOCK)

    def discard(self) -> None:
        """Deletes the files. Whoever asked for the export calls it, whatever becomes of the stream."""
        shutil.rmtree(self.directory.parent, ignore_errors=True)


class Exports:
    """Makes exports under `home/exports`. A merge needs the base model in memory, so merges run one after another."""

    def __init__(self, home: Home, base: ServedModel, store: AdapterStore, retention: Retention) -> None:
        self._base, self._store, self._retention, self._logs = base, store, retention, home.logs
        self._root = home.root / "exports"
        self._turn = asyncio.Lock()

    def discard_all(self) -> None:
        """Deletes what a killed server left. Only for the server that trains, before it makes exports: all servers of a
        fleet have one home."""
        shutil.rmtree(self._root, ignore_errors=True)

    async def make(
        self, policy: str, version: int, format: ExportFormat, gone: Callable[[], Awaitable[bool]]
    ) -> Export:
        """Puts a version together.

        Args:
            policy: The policy.
            version: Its version.
            format: What to make of it.
            gone: Whether the client has left; asked while a merge is under way.

        Raises:
            ExportFailed: The format cannot hold this model.
            NotFound: The version, or one of its files, was deleted meanwhile.
            ExportAbandoned: The client has left.
            OSError: Its files could not be written, for example because the disk is full.
        """
        scratch = self._root / secrets.token_hex(8)
        try:
            with self._retention.hold((policy, version)):
                adapter = await asyncio.to_thread(self._adapter, policy, version, scratch / "peft")
            export = Export(adapter)
            if format != "peft":
                async with self._turn:
                    export = Export(await self._merge(adapter, scratch / format, f"{policy}@{version}", format, gone))
            card = await asyncio.to_thread(self._card, policy, version, format)
            (export.directory / "README.md").write_text(card, encoding="utf-8")
            return export
        except FileNotFoundError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            why = self._store.problem(policy, version) or f"{error.filename} is gone"
            raise NotFound(f"{policy}@{version} cannot be exported: {why}", code="not_found") from None
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    def _adapter(self, policy: str, version: int, out: Path) -> Path:
        source = self._store.directory(policy, version)
        out.mkdir(parents=True)
        shutil.copyfile(source / "adapter_model.safetensors", out / "adapter_model.safetensors")
        config = json.loads((source / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = self._base.hub_id  # not where it lies on this machine
        config["revision"] = self._base.revision
        (out / "adapter_config.json").write_text(json.dumps(config, indent=2))
        return out

    async def _merge(
        self, adapter: Path, out: Path, name: str, format: str, gone: Callable[[], Awaitable[bool]]
    ) -> Path:
        line = [sys.executable, "-m", "trainer_server.training.export.merge", "--model", self._base.path]
        line += ["--adapter", str(adapter), "--out", str(out), "--format", format, "--name", name]
        line += ["--trust-remote-code"] if self._base.trust_remote_code else []
        env = {**inherited_environment(), **self._base.process_environment()}
        child = Child("export", line, self._logs, env, low_priority=flavour() == "cpu")
        child.log.unlink(missing_ok=True)
        await child.start()
        try:
            end = asyncio.ensure_future(child.wait())
            while not (await asyncio.wait({end}, timeout=_POLL_INTERVAL))[0]:
                if await gone():
                    raise ExportAbandoned("the client went away")
            if end.result():
                reason = child.tail(1).removeprefix("error: ")
                if "No space left" in reason:
                    raise OSError(reason)
                raise ExportFailed(f"the export failed: {reason or child.log}")
        finally:
            await child.stop()
        return out

    def _card(self, policy: str, version: int, format: ExportFormat) -> str:
        spec, record = self._store.policy(policy), self._store.version(policy, version)
        if spec is None or record is None:
            raise NotFound(f"{policy}@{version} was deleted meanwhile", code="not_found")
        numbers = [number for number in self._store.versions(policy) if number <= version]
        history = [earlier for number in numbers if (earlier := self._store.version(policy, number))]
        return model_card(spec, record, history, self._base.hub_id, format)


def _head(path: Path) -> bytes:
    info = tarfile.TarInfo(path.name)
    info.size, info.mtime = path.stat().st_size, int(path.stat().st_mtime)
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(path: Path) -> int:
    return -path.stat().st_size % _BLOCK
