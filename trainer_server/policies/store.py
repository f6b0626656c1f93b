"""Policies and their adapters on disk. Each version has an immutable directory, which is published atomically.

policies/<name>/policy.json         the policy's specification and base model
policies/<name>/highest.json        the highest version number that was ever given. No number is given twice, because
                                    vLLM's prefix cache identifies adapters by name
policies/<name>/staging/<N>/        a version that is being written
policies/<name>/versions/<N>/       adapter_config.json, adapter_model.safetensors: the adapter in PEFT's format
                                    version.json: Version
                                    optimizer.safetensors, trainer.json: state from which the next step continues
                                    score.json: how good the version is, once that is known
                                    quarantined.json: why the version is out of use; absent for a usable version
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
    """The directory `policies/`. Every call reads the files again; the store keeps no state in memory.

    Args:
        root: The directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, policy: str, version: int) -> Path:
        """The directory of the adapter `policy@version`, whether it exists or not."""
        return self.root / policy / "versions" / str(version)

    def register(self, spec: PolicySpec, base_model: str, fingerprint: str | None = None) -> None:
        """Records that a policy exists. It can be served once version 0 is published.

        Args:
            spec: What the policy was created with.
            base_model: Name of the base model.
            fingerprint: Fingerprint of the base model's weights; None: not known.
        """
        file = _PolicyFile(spec=spec, base_model=base_model, fingerprint=fingerprint, created=time.time())
        write_atomic(self.root / spec.name / "policy.json", file.model_dump_json(indent=2))

    def spec(self, policy: str) -> PolicySpec | None:
        """The specification that a policy was registered with; None if it was never registered."""
        file = self._file(policy)
        return file.spec if file else None

    def policy(self, policy: str) -> Policy | None:
        """A policy; None if it has no version that can be used."""
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
        """All policies with at least one version that can be used, by name."""
        for name in self.names():
            if (policy := self.policy(name)) is not None:
                yield policy

    def names(self) -> list[str]:
        """Names of all registered policies, with or without a version that can be used, sorted."""
        return sorted(path.parent.name for path in self.root.glob("*/policy.json"))

    def other_base(self, policy: str, base_model: str, fingerprint: str | None) -> str | None:
        """Why a policy cannot be used on a base model; None if it can.

        Args:
            policy: Name of the policy.
            base_model: Name of the base model.
            fingerprint: Fingerprint of the base model's weights; None: weights are not compared.
        """
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
                "serve the model that it was created on (--model, --revision), or create a policy of another name"
            )
        return None

    def versions(self, policy: str) -> list[int]:
        """Numbers of the published versions that can be used, ascending."""
        return sorted(
            int(path.parent.name)
            for path in (self.root / policy / "versions").glob("*/version.json")
            if path.parent.name.isdigit() and not (path.parent / "quarantined.json").exists()
        )

    def version(self, policy: str, version: int) -> Version | None:
        """The record of a version; None if it does not exist or is quarantined."""
        directory = self.directory(policy, version)
        if not (directory / "version.json").exists() or (directory / "quarantined.json").exists():
            return None
        record = Version.model_validate_json((directory / "version.json").read_text())
        if (score := directory / "score.json").exists():
            record.score, record.scored_by = json.loads(score.read_text()).values()
        return record

    def made_by(self, policy: str, job_id: str) -> Version | None:
        """The version that a job published, or None. Only the two newest versions are searched."""
        for number in reversed(self.versions(policy)[-2:]):
            record = self.version(policy, number)
            if record and record.job_id == job_id:
                return record
        return None

    def next_number(self, policy: str) -> int:
        """The number of the next version: above all numbers ever given, those of quarantined versions included."""
        taken = (int(path.name) for path in (self.root / policy / "versions").glob("*") if path.name.isdigit())
        return 1 + max((self._highest(policy), *taken))

    def note_highest(self, policy: str, version: int) -> None:
        """Records that a version number was given, so that it is not given again after the version is deleted."""
        if version > self._highest(policy):
            with suppress(OSError):  # not fatal: the version's directory also shows that its number was given
                write_atomic(self.root / policy / "highest.json", json.dumps({"version": version}))

    def staging(self, policy: str, version: int) -> Path:
        """Makes an empty directory to write a version into; `publish` makes the version visible."""
        directory = self.root / policy / "staging" / str(version)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        return directory

    def publish(self, aside: Path, record: Version) -> Path:
        """Makes a version visible.

        Args:
            aside: The directory from `staging`, with the version's files.
            record: Written into `version.json`.

        Returns:
            The version's final directory.
        """
        final = self.directory(record.policy, record.version)
        final.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(aside / "version.json", record.model_dump_json(indent=2))
        faults.point("staged")
        publish_directory(aside, final)
        faults.point("published")
        self.note_highest(record.policy, record.version)
        return final

    def delete(self, policy: str, version: int) -> None:
        """Deletes a version's files.

        Raises:
            ConfigError: It is the newest version. Without it, the policy's name would mean an older version.
        """
        if version == self.versions(policy)[-1]:
            raise ConfigError(f"{policy}@{version} is the newest version and cannot be deleted")
        directory = self.directory(policy, version)
        deleted = directory.with_name(f".deleted-{version}")
        directory.rename(deleted)
        shutil.rmtree(deleted)

    def delete_state(self, policy: str, version: int) -> None:
        """Deletes a version's optimizer state, two thirds of its bytes. The adapter stays."""
        (self.directory(policy, version) / OPTIMIZER).unlink(missing_ok=True)

    def clean(self) -> None:
        """Deletes what killed processes left unfinished. Call it only while no trainer runs."""
        for path in (*self.root.glob("*/staging/*"), *self.root.glob("*/versions/.deleted-*")):
            shutil.rmtree(path, ignore_errors=True)

    def score(self, policy: str, version: int, score: float, by: str) -> None:
        """Records how good a version is.

        Args:
            policy: Name of the policy.
            version: Number of the version.
            score: Larger is better.
            by: `evaluation` (a client set the score) or `rollouts` (mean reward of the version's rollouts).
        """
        write_atomic(self.directory(policy, version) / "score.json", json.dumps({"score": score, "scored_by": by}))

    def problem(self, policy: str, version: int) -> str | None:
        """Why a version cannot be used, judged by its files; None if it can."""
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
        """Quarantined versions: number → reason."""
        paths = (self.root / policy / "versions").glob("*/quarantined.json")
        return {int(path.parent.name): str(json.loads(path.read_text())["reason"]) for path in sorted(paths)}

    def quarantine(self, policy: str, version: int, why: str) -> str:
        """Takes a version out of use. Its files stay where they are.

        Args:
            policy: Name of the policy.
            version: Number of the version.
            why: What is wrong with it.

        Returns:
            A message for the user: what is wrong, what happens now, and how to repair it.
        """
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
        """The newest versions of a policy that cannot be used and are not quarantined yet.

        The search goes back from the newest version and ends at the first usable one. It changes nothing; the caller
        quarantines the versions in the order of the result.

        Returns:
            Number → what is wrong, newest version first.
        """
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
