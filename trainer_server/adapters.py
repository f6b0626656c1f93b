"""Policies and their adapters on disk: immutable directories, one per version, never reused, published atomically.

policies/<name>/policy.json             Policy, less `latest`
policies/<name>/versions/<N>/           adapter_config.json, adapter_model.safetensors: what PEFT and vLLM read
                                        version.json: Version
                                        optimizer.safetensors, trainer.json: what the next step goes on from
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from trainer_server.files import publish_directory, write_atomic
from trainer_server.wire import ConfigError, Policy, PolicySpec, Version


class _PolicyFile(BaseModel):
    spec: PolicySpec
    base_model: str
    created: float


class AdapterStore:
    """The directory `policies/`. Reads what is there on every call; keeps no state of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, policy: str, version: int) -> Path:
        """Where the adapter of `policy@version` lies, or will lie."""
        return self.root / policy / "versions" / str(version)

    def register(self, spec: PolicySpec, base_model: str) -> None:
        """Writes down that a policy exists. It can be served once version 0 is published."""
        file = _PolicyFile(spec=spec, base_model=base_model, created=time.time())
        write_atomic(self.root / spec.name / "policy.json", file.model_dump_json(indent=2))

    def spec(self, policy: str) -> PolicySpec | None:
        """What a policy was registered with, published or not; None if it was never registered."""
        path = self.root / policy / "policy.json"
        return _PolicyFile.model_validate_json(path.read_text()).spec if path.exists() else None

    def policy(self, policy: str) -> Policy | None:
        """A policy with at least one published version, or None."""
        path = self.root / policy / "policy.json"
        versions = self.versions(policy)
        if not path.exists() or not versions:
            return None
        file = _PolicyFile.model_validate_json(path.read_text())
        return Policy(
            name=policy, spec=file.spec, base_model=file.base_model, created=file.created, latest=versions[-1]
        )

    def policies(self) -> Iterator[Policy]:
        for path in sorted(self.root.glob("*/policy.json")):
            if (policy := self.policy(path.parent.name)) is not None:
                yield policy

    def versions(self, policy: str) -> list[int]:
        """Published versions, ascending."""
        found = (self.root / policy / "versions").glob("*/version.json")
        return sorted(int(path.parent.name) for path in found if path.parent.name.isdigit())

    def version(self, policy: str, version: int) -> Version | None:
        path = self.directory(policy, version) / "version.json"
        return Version.model_validate_json(path.read_text()) if path.exists() else None

    def staging(self, policy: str, version: int) -> Path:
        """A fresh directory to write a version into; `publish` makes it visible."""
        aside = self.root / policy / "staging" / str(version)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        return aside

    def publish(self, aside: Path, record: Version) -> Path:
        """Makes a version that was written into `staging` visible; returns its directory."""
        final = self.directory(record.policy, record.version)
        final.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(aside / "version.json", record.model_dump_json(indent=2))
        publish_directory(aside, final)
        return final

    def delete(self, policy: str, version: int) -> None:
        """Removes a version's files. Raises ConfigError for the newest one: the policy would go back in time."""
        if version == self.versions(policy)[-1]:
            raise ConfigError(f"{policy}@{version} is the newest version and cannot be deleted")
        doomed = self.directory(policy, version)
        gone = doomed.with_name(f".deleted-{version}")
        doomed.rename(gone)
        shutil.rmtree(gone)
