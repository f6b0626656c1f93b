"""Stage 2, resolve: which policy and version answer a request, and what its rollout decides about it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trainer_server.gateway.errors import APIError
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.policies.canary import Canary
from trainer_server.policies.leases import Leases
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import FOLLOW, LATEST, VersionRef, names_version, version_number
from trainer_server.wire.headers import ROLLOUT, TEMPERATURE, VERSION
from trainer_server.wire.rollouts import PinnedVersion, pinned_version


@dataclass(frozen=True, slots=True)
class Source:
    """Where an answer comes from.

    Args:
        policy: Name of the policy; None: the base model.
        version: Version of the policy; None: the base model.
        rollout: Id of the request's rollout; None: the request belongs to none.
        hint: What is put into the prompt for this rollout; None: nothing.
        temperature: Overrides the request's; None: no override.
    """

    policy: str | None
    version: int | None
    rollout: str | None
    hint: str | None = None
    temperature: float | None = None

    @property
    def key(self) -> tuple[str, int] | None:
        """The version that answers; None: the base model."""
        return None if self.policy is None or self.version is None else (self.policy, self.version)


class Sources(Protocol):
    """Where answers come from: `Resolver`, or one in another process of the server."""

    async def resolve(self, model: str, headers: Mapping[str, str]) -> Source:
        """The source of the answer to a request; see `Resolver.resolve`."""
        ...


class Resolver:
    """Finds the source of an answer, and leases the version to the rollout.

    Args:
        store: Policies on disk.
        names: The version that each policy's name currently means.
        leases: Versions that running rollouts are pinned to.
        canary: What policies' names mean for each rollout.
        rollouts: What rollouts were registered with.
        base: Name of the base model.
    """

    def __init__(
        self,
        store: AdapterStore,
        names: PolicyNames,
        leases: Leases,
        canary: Canary,
        rollouts: RolloutRepository,
        *,
        base: str,
    ) -> None:
        self._store, self._names, self._leases = store, names, leases
        self._canary, self._rollouts, self._base = canary, rollouts, base

    def models(self) -> dict[str, Any]:
        """The answer to `GET /v1/models`: the base model, all policies, and all their versions. `@latest` is listed
        where the policy's name means another version."""
        ids = [self._base]
        for policy in self._store.policies():
            latest = [] if policy.promoted is None else [f"{policy.name}@{LATEST}"]
            ids += [policy.name, *latest, *(f"{policy.name}@{v}" for v in self._store.versions(policy.name))]
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "created": 0, "owned_by": "art-langgraph"} for name in ids],
        }

    async def resolve(self, model: str, headers: Mapping[str, str]) -> Source:
        """The source of the answer to a request. A header counts more than the rollout's registration, and both more
        than the policy.

        Args:
            model: What the request names.
            headers: Of the request: its rollout, and what that overrides.

        Raises:
            APIError: 404, there is no such model; 400 for a header that is no rollout, no temperature or no version.
            LedgerError: What the name means, or what the rollout holds, cannot be read or written.
        """
        rollout = headers.get(ROLLOUT)
        if rollout is not None and not 0 < len(rollout) <= 200:
            raise APIError(400, f"header {ROLLOUT} must have 1 to 200 characters", param=ROLLOUT)
        temperature, version = _temperature(headers), _version(headers)
        hints: Mapping[str, str] = {}
        if rollout is None:
            version = None
        else:
            is_known, registration = self._rollouts.known_spec(rollout)
            if not is_known:
                registration = await asyncio.to_thread(self._rollouts.spec, rollout)
            if registration is not None:
                temperature = registration.temperature if temperature is None else temperature
                version = registration.version if version is None else version
                hints = registration.hints
        if _follows(model, version):
            name = model.removesuffix(f"@{LATEST}")
            policy, number = await self.version(name if name == self._base else f"{name}@{LATEST}", None)
        else:
            policy, number = await self.version(_pinned_model(model, version), rollout)
        if policy is None:
            return Source(None, None, rollout, temperature=temperature)
        if temperature is None and (spec := self._store.spec(policy)):
            temperature = spec.temperature
        return Source(policy, number, rollout, hints.get(policy), temperature)

    async def version(self, model: str, rollout: str | None) -> tuple[str | None, int | None]:
        """The policy and version that a model's name means now; (None, None) for the base model.

        Raises:
            APIError: 404, there is no such model.
            LedgerError: What the name means, or what the rollout holds, cannot be read or written.
        """
        name, at, number = model.partition("@")
        if model == self._base:
            return None, None
        if rollout and name == self._base and (number == LATEST or version_number(number) is not None):
            return None, None  # a rollout's version is that of the policies; it does not know which model is none
        await self._names.refresh(name)
        newest = self._names.newest.get(name)
        if newest is not None:
            if not at:
                return name, await self._canary.version(name, rollout)
            if number == LATEST:
                return name, await self._leases.pin(rollout, name, newest, requested_name=model) if rollout else newest
            version = version_number(number)
            if version is not None and self._store.version(name, version):
                if rollout:  # so that it is not deleted between two calls of the run
                    await self._leases.pin(rollout, name, version, requested_name=model)
                return name, version
            message = self._store.quarantine_reasons(name).get(version) if version is not None else None
            message = message or f"policy {name!r} has no version {number!r}; its newest is {newest}"
            raise APIError(404, message, code="model_not_found", param="model")
        if unavailable_reason := self._names.unserved_policies.get(name):
            raise APIError(404, unavailable_reason, code="model_not_found", param="model")
        names = [self._base, *sorted(self._names.newest)]
        raise APIError(
            404,
            f"the model {model!r} does not exist; there are: {', '.join(names)}. "
            "`art-langgraph policies create NAME` creates a policy, and so do TrainerClient.create_policy and "
            "POST /api/policies.",
            code="model_not_found",
            param="model",
        )


def _pinned_model(model: str, pin: PinnedVersion | None) -> str:
    """The model that answers where a request names this one. A request that names a version keeps it."""
    if names_version(model):
        return model
    policy = model.removesuffix(f"@{LATEST}")
    version = pinned_version(pin, policy)
    return model if version is None else f"{policy}@{version}"


def _follows(model: str, pin: PinnedVersion | None) -> bool:
    """Whether a rollout gets the newest version at each call. A request that names a version keeps it."""
    return not names_version(model) and pinned_version(pin, model.removesuffix(f"@{LATEST}")) == FOLLOW


def _temperature(headers: Mapping[str, str]) -> float | None:
    if (text := headers.get(TEMPERATURE)) is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 10.0:
        raise APIError(400, f"header {TEMPERATURE}: {text!r} is no temperature between 0 and 10", param=TEMPERATURE)
    return value


def _version(headers: Mapping[str, str]) -> PinnedVersion | None:
    if (text := headers.get(VERSION)) is None:
        return None
    if (number := _reference(text)) is not None:
        return number
    versions: dict[str, VersionRef] = {}
    for part in text.split(","):
        policy, _, digits = part.strip().partition("=")
        if not policy or (number := _reference(digits)) is None:
            raise APIError(
                400,
                f"header {VERSION}: {text!r:.100} names no version: send a number, or `policy=number,policy=number`",
                param=VERSION,
            )
        versions[policy] = number
    return versions


def _reference(text: str) -> VersionRef | None:
    return "latest" if text == LATEST else "follow" if text == FOLLOW else version_number(text)
