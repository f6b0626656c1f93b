"""Policies and their adapters on disk. Each version has an immutable directory, which is published atomically.

policies/<name>/policy.json         the policy's specification and base model
policies/<name>/highest.json        the highest version number that was ever given. No number is given twice, because
                                    vLLM's prefix cache identifies adapters by name
policies/<name>/promoted.json       the version that the policy's name means, and how many promotions there were;
                                    absent: the newest one
policies/<name>/candidate.json      Candidate: the version that is tried beside it. It counts until the next promotion
policies/<name>/staging/<N>/        a version that is being written
policies/<name>/versions/<N>/       adapter_config.json, adapter_model.safetensors: the adapter in PEFT's format
                                    version.json: Version
                                    optimizer.safetensors, trainer.json: state from which the next step continues
                                    score.json: how good the version is, once that is known
                                    quarantined.json: why the version is out of use; absent for a usable version

A directory in versions/ is a version if its name is a number as `version_number` reads it, and a directory in policies/
is a policy if its policy.json names it. Everything else there (a backup made by hand, say) is ignored, with one
warning in the log.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel
from safetensors import SafetensorError, safe_open

from trainer_server.common.schemas import RecordSchema
from trainer_server.process import faults
from trainer_server.process.files import FileReader, fsync_directory, may_pass, publish_directory, write_atomic
from trainer_server.wire import (
    MAX_VERSION,
    NAME_PATTERN,
    Candidate,
    ConfigError,
    Policy,
    PolicySpec,
    Version,
    version_number,
)

log = logging.getLogger("trainer_server")

T = TypeVar("T")

VERSION_FILE = RecordSchema(lambda unnumbered: unnumbered)
"""The form of version.json."""
OPTIMIZER = "optimizer.safetensors"
_TOMBSTONE = "deleted.json"


class _PolicyFile(BaseModel):
    spec: PolicySpec
    base_model: str
    fingerprint: str | None = None
    created: float


class _PromotedFile(BaseModel):
    version: int | None
    count: int = 1
    """How many promotions there were until now. A file without the number was written by one."""


class _ScoreFile(BaseModel):
    score: float
    scored_by: Literal["evaluation", "rollouts"]
    trajectories: int = 0
    """How many trajectories the mean is of, for a score by rollouts."""
    job: str | None = None
    """The last job whose rewards are in the mean."""


class AdapterStore:
    """The directory `policies/`. Every call sees the files as they are now; a file is parsed again when it changed.

    Args:
        root: The directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = FileReader()
        self._messages: set[str] = set()
        """Warnings in the log: each once."""

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
        file, newest = self._file(policy), self.newest(policy)
        if file is None or newest is None:
            return None
        return Policy(
            name=policy,
            spec=file.spec,
            base_model=file.base_model,
            created=file.created,
            latest=newest,
            promoted=self.promoted_version(policy),
            promotions=self.promotions(policy),
            candidate=self.candidate(policy),
            quarantined=self._damage_reasons(policy) | self.quarantine_reasons(policy),
        )

    def policies(self) -> Iterator[Policy]:
        """All policies with at least one version that can be used, by name."""
        for name in self.names():
            if (policy := self.policy(name)) is not None:
                yield policy

    def names(self) -> list[str]:
        """Names of all registered policies, with or without a version that can be used, sorted."""
        return sorted(path.parent.name for path in self.root.glob("*/policy.json") if self._is_policy(path))

    def other_base(self, policy: str, base_model: str, fingerprint: str | None) -> str | None:
        """Why a policy cannot be used on a base model; None if it can.

        Args:
            policy: Name of the policy.
            base_model: Name of the base model.
            fingerprint: Fingerprint of the base model's weights; None: weights are not compared.
        """
        path = self.root / policy / "policy.json"
        try:
            file = self._files.read(path, _PolicyFile.model_validate_json)
        except FileNotFoundError:
            return None
        except ValueError as error:
            return f"policies/{policy}/policy.json in the server's home cannot be read: {error}. Repair it, and restart"
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
        return [number for number in self._numbers(policy) if self._usable(policy, number)]

    def newest(self, policy: str) -> int | None:
        """The newest published version that can be used; None: there is none. Looks at no more files than needed."""
        return next((number for number in reversed(self._numbers(policy)) if self._usable(policy, number)), None)

    def version(self, policy: str, version: int) -> Version | None:
        """The record of a version; None if it does not exist, is quarantined, or its record is damaged."""
        if not self._usable(policy, version):
            return None
        directory = self.directory(policy, version)
        record = self._read(directory / "version.json", partial(_version_in, directory / "version.json"))
        if record is None:
            return None
        if (record.policy, record.version) != (policy, version):
            self._warn_once(
                f"{self._label(directory)} is left out: its version.json is that of {record.policy}@{record.version}"
            )
            return None
        score = self._read(directory / "score.json", _ScoreFile.model_validate_json)
        return record.model_copy(update=score.model_dump(include={"score", "scored_by"}) if score else {})

    def promoted_version(self, policy: str) -> int | None:
        """The version that was promoted, if it can be used; None: none was."""
        promotion = self._promotion(policy)
        version = promotion.version if promotion else None
        return version if version is not None and self._usable(policy, version) else None

    def promotions(self, policy: str) -> int:
        """How many promotions there were until now."""
        promotion = self._promotion(policy)
        return promotion.count if promotion else 0

    def promote(self, policy: str, version: int | None) -> None:
        """Records which version is promoted; None: none.

        Raises:
            FileNotFoundError: There is no such version any more.
            OSError: It could not be written.
        """
        if version is not None and not self._usable(policy, version):
            raise FileNotFoundError(f"{policy}@{version} was deleted meanwhile")
        file = _PromotedFile(version=version, count=self.promotions(policy) + 1)
        write_atomic(self.root / policy / "promoted.json", file.model_dump_json())

    def candidate(self, policy: str) -> Candidate | None:
        """The version that is tried beside the promoted one; None: there is none, or there was a promotion since."""
        candidate = self._read(self.root / policy / "candidate.json", Candidate.model_validate_json)
        if (
            candidate is None
            or candidate.promotions != self.promotions(policy)
            or self.promoted_version(policy) is None
        ):
            return None
        return candidate if self._usable(policy, candidate.version) else None

    def try_candidate(self, policy: str, candidate: Candidate | None) -> None:
        """Records which version is tried beside the promoted one; None: none.

        Raises:
            OSError: It could not be written.
        """
        path = self.root / policy / "candidate.json"
        if candidate is None:
            path.unlink(missing_ok=True)
            fsync_directory(path.parent)
        else:
            write_atomic(path, candidate.model_dump_json())

    def made_by(self, policy: str, job_id: str) -> Version | None:
        """The version that a job published, or None. Only the two newest versions are searched."""
        usable = (number for number in reversed(self._numbers(policy)) if self._usable(policy, number))
        for number in islice(usable, 2):
            record = self.version(policy, number)
            if record and record.job_id == job_id:
                return record
        return None

    def next_number(self, policy: str) -> int:
        """The number of the next version: above all numbers ever given, those of quarantined versions included."""
        return 1 + max((self._highest(policy), *self._numbers(policy)))

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
        write_atomic(aside / "version.json", VERSION_FILE.to_text(record))
        faults.point("staged")
        publish_directory(aside, final)
        faults.point("published")
        self.note_highest(record.policy, record.version)
        return final

    def delete(self, policy: str, version: int) -> None:
        """Deletes a version and its files; see `withdraw` for the errors."""
        shutil.rmtree(self.withdraw(policy, version))

    def withdraw(self, policy: str, version: int) -> Path:
        """Takes a version out of the policy, in one step.

        Returns:
            Where its files are now. The caller deletes them, which may take long; `clean` does it after a crash.

        Raises:
            ConfigError: It is the newest version. Without it, the policy's name would mean an older version.
            FileNotFoundError: There is no such version.
        """
        if version == self.newest(policy):
            raise ConfigError(f"{policy}@{version} is the newest version and cannot be deleted")
        directory = self.directory(policy, version)
        aside = directory.rename(directory.with_name(f".deleted-{version}"))
        self._files.forget(directory)
        return aside

    def delete_state(self, policy: str, version: int) -> None:
        """Deletes a version's optimizer state, two thirds of its bytes. The adapter stays."""
        (self.directory(policy, version) / OPTIMIZER).unlink(missing_ok=True)

    def delete_policy(self, policy: str) -> None:
        """Deletes a policy with all its versions. Its name stays taken: see `deleted`.

        Raises:
            OSError: Its files could not be deleted. The policy is gone if its policy.json is; `clean` deletes the rest.
        """
        directory = self.root / policy
        write_atomic(directory / _TOMBSTONE, json.dumps({"time": time.time()}))
        (directory / "policy.json").unlink(missing_ok=True)
        fsync_directory(directory)
        _empty(directory)
        self._files.forget(directory)

    def deleted(self, policy: str) -> bool:
        """Whether a policy of this name was deleted. Engines keep computed prompts by the names of adapters, so that a
        policy of the same name could be answered from those of the deleted one."""
        return (self.root / policy / _TOMBSTONE).exists()

    def clean(self) -> None:
        """Deletes what killed processes left unfinished. Call it only while no trainer runs."""
        for path in (*self.root.glob("*/staging/*"), *self.root.glob("*/versions/.deleted-*")):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.root.glob(f"*/{_TOMBSTONE}"):
            with suppress(OSError):
                _empty(path.parent)

    def score(self, policy: str, version: int, score: float) -> None:
        """Records the score that a client gives a version: larger is better. It counts more than rewards of rollouts.

        Raises:
            FileNotFoundError: There is no such version any more.
            OSError: The score could not be written.
        """
        if not self._usable(policy, version):
            raise FileNotFoundError(f"{policy}@{version} was deleted meanwhile")
        file = _ScoreFile(score=score, scored_by="evaluation")
        write_atomic(self.directory(policy, version) / "score.json", file.model_dump_json())

    def credit(self, policy: str, version: int, mean_reward: float, trajectories: int, job: str) -> None:
        """Adds rewards to the score of the version that sampled them, unless a client scored that version.

        Args:
            policy: Name of the policy.
            version: The version; nothing happens where it does not exist any more.
            mean_reward: Mean reward of its trajectories.
            trajectories: How many they are.
            job: Id of the step that they were sent to. Adding them again, after a crash, changes nothing.
        """
        score = self._read(self.directory(policy, version) / "score.json", _ScoreFile.model_validate_json)
        if score and (score.scored_by == "evaluation" or score.job == job):
            return
        if trajectories < 1 or not math.isfinite(mean_reward) or not self._usable(policy, version):
            return
        count = score.trajectories if score else 0
        total = (score.score * count if score else 0.0) + mean_reward * trajectories
        count += trajectories
        file = _ScoreFile(score=total / count, scored_by="rollouts", trajectories=count, job=job)
        write_atomic(self.directory(policy, version) / "score.json", file.model_dump_json())

    def problem(self, policy: str, version: int) -> str | None:
        """Why a version cannot be used, judged by its files; None if it can, or if they cannot be read now: see
        `may_pass`. Raises NewerSchema for a version that a newer release made: nothing is wrong with it."""
        directory = self.directory(policy, version)
        if (reason := self._reason(policy, version)) is not None:
            return reason
        if not directory.exists():
            return "its directory is gone"
        for name in ("version.json", "adapter_config.json", "adapter_model.safetensors"):
            if not (directory / name).exists():
                return f"{name} is missing"
        try:
            record = _version_in(directory / "version.json", (directory / "version.json").read_text())
            if (record.policy, record.version) != (policy, version):
                return f"its version.json is that of {record.policy}@{record.version}"
            json.loads((directory / "adapter_config.json").read_text())
            weights = directory / "adapter_model.safetensors"
            weights.open("rb").close()  # safetensors calls every file missing that it cannot open, without an errno
            with safe_open(weights, framework="numpy"):
                pass
        except (OSError, ValueError, RecursionError, SafetensorError) as error:
            if isinstance(error, OSError) and (error.errno is None or may_pass(error)):
                return None
            return f"its files are damaged: {error}"
        return None

    def quarantine_reasons(self, policy: str) -> dict[int, str]:
        """Quarantined versions: number → reason."""
        reasons = {number: self._reason(policy, number) for number in self._numbers(policy)}
        return {number: reason for number, reason in reasons.items() if reason is not None}

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
        problems = {}
        highest, versions = self._highest(policy), self.versions(policy)
        for number in sorted({*versions, *([highest] if highest >= 0 else [])}, reverse=True):
            if number not in versions and number in self.quarantine_reasons(policy):
                continue
            if (why := self.problem(policy, number)) is None:
                break
            problems[number] = why
        return problems

    def _numbers(self, policy: str) -> list[int]:
        """Numbers of the versions that have a directory, usable or not, ascending. The only place that knows which
        directories are versions."""
        folder = self.root / policy / "versions"
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        numbers = []
        for name in names:
            if (number := version_number(name)) is not None:
                numbers.append(number)
            elif not name.startswith("."):
                self._warn_once(f"{self._label(folder / name)} is ignored: its name is not the number of a version")
        return sorted(numbers)

    def _usable(self, policy: str, version: int) -> bool:
        if not 0 <= version < MAX_VERSION:  # a request may name any number, which a path may not
            return False
        directory = self.directory(policy, version)
        return (directory / "version.json").exists() and not (directory / "quarantined.json").exists()

    def _is_policy(self, path: Path) -> bool:
        """Whether a policy.json is where it belongs. A damaged one is taken for a policy that cannot be served."""
        name = path.parent.name
        if not re.fullmatch(NAME_PATTERN, name):
            self._warn_once(f"{self._label(path.parent)} is ignored: its name is not that of a policy")
            return False
        file = self._file(name)
        if file and file.spec.name != name:
            self._warn_once(
                f"{self._label(path.parent)} is ignored: its policy.json is that of the policy {file.spec.name!r}"
            )
            return False
        return True

    def _damage_reasons(self, policy: str) -> dict[int, str]:
        """Versions whose record cannot be read: number → what is wrong."""
        numbers = [number for number in self.versions(policy) if self.version(policy, number) is None]
        return {number: f"{policy}@{number}: {why}" for number in numbers if (why := self.problem(policy, number))}

    def _reason(self, policy: str, version: int) -> str | None:
        """Why a version is quarantined; None: it is not."""
        try:
            return self._files.read(self.directory(policy, version) / "quarantined.json", _reason_in)
        except FileNotFoundError:
            return None
        except ValueError as error:
            return (
                f"{policy}@{version} is quarantined, and its quarantined.json cannot be read ({error}): delete that "
                "file and restart to use the version again"
            )

    def _promotion(self, policy: str) -> _PromotedFile | None:
        return self._read(self.root / policy / "promoted.json", _PromotedFile.model_validate_json)

    def _highest(self, policy: str) -> int:
        highest = self._read(self.root / policy / "highest.json", _number_in)
        return -1 if highest is None else highest

    def _file(self, policy: str) -> _PolicyFile | None:
        return self._read(self.root / policy / "policy.json", _PolicyFile.model_validate_json)

    def _read(self, path: Path, parse: Callable[[str], T]) -> T | None:
        """The content of a file; None where there is none. A damaged file counts as none, with a warning in the log."""
        try:
            return self._files.read(path, parse)
        except FileNotFoundError:
            return None
        except ValueError as error:
            self._warn_once(f"{self._label(path)} is left out, it cannot be read: {error}")
            return None

    def _label(self, path: Path) -> str:
        return f"policies/{path.relative_to(self.root)}"

    def _warn_once(self, message: str) -> None:
        if message not in self._messages:
            self._messages.add(message)
            log.warning("%s", message)


def _empty(directory: Path) -> None:
    """Deletes all in the directory of a deleted policy but the note that it was deleted."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _TOMBSTONE:
            path.unlink(missing_ok=True)


def _version_in(path: Path, text: str) -> Version:
    return Version.model_validate(VERSION_FILE.from_text(text, path))


def _reason_in(text: str) -> str:
    return str(json.loads(text)["reason"])


def _number_in(text: str) -> int:
    return int(json.loads(text)["version"])
