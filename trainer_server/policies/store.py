"""Policies and their adapters on disk: immutable directories, one per version, never reused, published atomically.

policies/<name>/policy.json         Policy, less `latest`
policies/<name>/highest.json        the highest number that a version ever had: none is given twice, since vLLM's prefix
                                    cache knows adapters by name
policies/<name>/staging/<N>/        a version that is being written
policies/<name>/versions/<N>/       adapter_config.json, adapter_model.safetensors: what PEFT and vLLM read
                                    version.json: Version
                                    optimizer.safetensors, trainer.json: what the next step goes on from
                                    score.json: how good the version is, once that is known
                                    quarantined.json: why the version is not used; without it, it would be
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel
from safetensors import SafetensorError, safe_open

from trainer_server.process import faults
from trainer_server.process.files import publish_directory, write_atomic
from trainer_server.wire import ConfigError, Policy, PolicySpec, Version

OPTIMIZER = "optimizer.safetensors"


class _PolicyFile(BaseModel):
    spec: PolicySpec
    base_model: str
    fingerprint: str | None = None
    created: float


class AdapterStore:
    """The directory `policies/`. Reads what is there on every call; keeps no state of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, policy: str, version: int) -> Path:
        """Where the adapter of `policy@version` lies, or will lie."""
        return self.root / policy / "versions" / str(version)

    def register(self, spec: PolicySpec, base_model: str, fingerprint: str | None = None) -> None:
        """Writes down that a policy exists. It can be served once version 0 is published."""
        file = _PolicyFile(spec=spec, base_model=base_model, fingerprint=fingerprint, created=time.time())
        write_atomic(self.root / spec.name / "policy.json", file.model_dump_json(indent=2))

    def spec(self, policy: str) -> PolicySpec | None:
        """What a policy was registered with, published or not; None if it was never registered."""
        file = self._file(policy)
        return file.spec if file else None

    def policy(self, policy: str) -> Policy | None:
        """A policy with at least one version that can be used, or None."""
        file, versions = self._file(policy), self.versions(policy)
        if not file or not versions:
            return None
        return Policy(
            name=policy,
            spec=file.spec,
            base_model=file.base_model,
            created=file.created,
            latest=versions[-1],
            quarantined=self.quarantined(policy),
        )

    def policies(self) -> Iterator[Policy]:
        for name in self.names():
            if (policy := self.policy(name)) is not None:
                yield policy

    def names(self) -> list[str]:
        """Every policy that was registered, with or without a version that can be used."""
        return sorted(path.parent.name for path in self.root.glob("*/policy.json"))

    def other_base(self, policy: str, base_model: str, fingerprint: str | None) -> str | None:
        """Why a policy cannot be used on a base model, or None."""
        file = self._file(policy)
        if file is None:
            return None
        if file.base_model != base_model:
            return (
                f"policy {policy!r} belongs to the base model {file.base_model!r}, and this server has {base_model!r}: "
                "serve that one with --model, or create a policy of another name"
            )
        if file.fingerprint and fingerprint and file.fingerprint != fingerprint:
            return (
                f"policy {policy!r} belongs to other weights of {base_model!r} than those that the server has now: "
                "serve the model that it was created on, or create a policy of another name"
            )
        return None

    def versions(self, policy: str) -> list[int]:
        """Published versions that can be used, ascending."""
        found = (self.root / policy / "versions").glob("*/version.json")
        return sorted(
            int(path.parent.name)
            for path in found
            if path.parent.name.isdigit() and not (path.parent / "quarantined.json").exists()
        )

    def version(self, policy: str, version: int) -> Version | None:
        """None as well for a version in quarantine."""
        directory = self.directory(policy, version)
        if not (directory / "version.json").exists() or (directory / "quarantined.json").exists():
            return None
        found = Version.model_validate_json((directory / "version.json").read_text())
        if (score := directory / "score.json").exists():
            found.score, found.scored_by = json.loads(score.read_text()).values()
        return found

    def made_by(self, policy: str, job_id: str) -> Version | None:
        """What a job made, if it came that far."""
        for number in reversed(self.versions(policy)[-2:]):
            record = self.version(policy, number)
            if record and record.job_id == job_id:
                return record
        return None

    def next_number(self, policy: str) -> int:
        """The number of the version that is made next: above all that were ever made, also those in quarantine."""
        taken = (int(path.name) for path in (self.root / policy / "versions").glob("*") if path.name.isdigit())
        return 1 + max((self._highest(policy), *taken))

    def note_highest(self, policy: str, version: int) -> None:
        """Writes down that a number was given: it tells when its version is gone."""
        if version > self._highest(policy):
            with suppress(OSError):  # the version itself is there
                write_atomic(self.root / policy / "highest.json", json.dumps({"version": version}))

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
        faults.point("staged")
        publish_directory(aside, final)
        faults.point("published")
        self.note_highest(record.policy, record.version)
        return final

    def delete(self, policy: str, version: int) -> None:
        """Removes a version's files. Raises ConfigError for the newest one: the policy would go back in time."""
        if version == self.versions(policy)[-1]:
            raise ConfigError(f"{policy}@{version} is the newest version and cannot be deleted")
        doomed = self.directory(policy, version)
        gone = doomed.with_name(f".deleted-{version}")
        doomed.rename(gone)
        shutil.rmtree(gone)

    def delete_state(self, policy: str, version: int) -> None:
        """Removes what training would go on from: two thirds of a version's bytes. The adapter stays."""
        (self.directory(policy, version) / OPTIMIZER).unlink(missing_ok=True)

    def clean(self) -> None:
        """Removes what killed processes left half done. Only while no trainer is at work."""
        for path in (*self.root.glob("*/staging/*"), *self.root.glob("*/versions/.deleted-*")):
            shutil.rmtree(path, ignore_errors=True)

    def score(self, policy: str, version: int, score: float, by: str) -> None:
        """Notes how good a version is. by: `evaluation` (a client said so) or `rollouts` (rewards of its rollouts)."""
        write_atomic(self.directory(policy, version) / "score.json", json.dumps({"score": score, "scored_by": by}))

    def problem(self, policy: str, version: int) -> str | None:
        """Why a version cannot be used, from its files; None if it can."""
        directory = self.directory(policy, version)
        if (reason := directory / "quarantined.json").exists():
            return str(json.loads(reason.read_text())["reason"])
        if not directory.exists():
            return "its directory is gone"
        for name in ("version.json", "adapter_config.json", "adapter_model.safetensors"):
            if not (directory / name).exists():
                return f"{name} is missing"
        try:
            Version.model_validate_json((directory / "version.json").read_text())
            json.loads((directory / "adapter_config.json").read_text())
            with safe_open(directory / "adapter_model.safetensors", framework="numpy"):
                pass
        except (OSError, ValueError, SafetensorError) as error:
            return f"its files are damaged: {error}"
        return None

    def quarantined(self, policy: str) -> dict[int, str]:
        """Versions that are not used, and why."""
        found = (self.root / policy / "versions").glob("*/quarantined.json")
        return {int(path.parent.name): str(json.loads(path.read_text())["reason"]) for path in sorted(found)}

    def quarantine(self, policy: str, version: int, why: str) -> str:
        """Takes a version out of use; its files stay where they are. Returns what to tell the user."""
        directory = self.directory(policy, version)
        before = [number for number in self.versions(policy) if number < version]
        goes_on = f"the policy goes on from {policy}@{before[-1]}" if before else "no earlier version is left"
        reason = (
            f"{policy}@{version} cannot be used: {why}. It is quarantined, and {goes_on}. To have it back, repair "
            f"policies/{policy}/versions/{version} in the server's home, delete quarantined.json there, and restart."
        )
        write_atomic(directory / "quarantined.json", json.dumps({"reason": reason}))
        return reason

    def broken_newest(self, policy: str) -> dict[int, str]:
        """Versions at the end of a policy's history that cannot be used and are not in quarantine yet, newest first:
        number → what is wrong. Changes nothing; `quarantine` takes them out of use, in this order."""
        broken = {}
        highest, versions = self._highest(policy), self.versions(policy)
        for number in sorted({*versions, *([highest] if highest >= 0 else [])}, reverse=True):
            if number not in versions and number in self.quarantined(policy):
                continue
            if (why := self.problem(policy, number)) is None:
                break
            broken[number] = why
        return broken

    def _highest(self, policy: str) -> int:
        path = self.root / policy / "highest.json"
        return int(json.loads(path.read_text())["version"]) if path.exists() else -1

    def _file(self, policy: str) -> _PolicyFile | None:
        path = self.root / policy / "policy.json"
        return _PolicyFile.model_validate_json(path.read_text()) if path.exists() else None
