"""What the requests of a rollout are answered with: its version, its temperature, the hints in its prompts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer_server.gateway.errors import APIError
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.wire import LATEST, VersionRef, names_version, version_number
from trainer_server.wire.network.headers import TEMPERATURE, VERSION
from trainer_server.wire.rollouts import PinnedVersion, pinned_version


@dataclass(frozen=True, slots=True)
class RequestPins:
    """What holds for one request.

    Args:
        temperature: Overrides the request's; None: no override.
        version: Of the policies that are named without one, for all or by name; None: what their names mean.
        hints: By policy, what is put into its prompts.
    """

    temperature: float | None = None
    version: PinnedVersion | None = None
    hints: Mapping[str, str] = field(default_factory=dict)

    def model(self, name: object) -> object:
        """The model to answer with, where a request names `name`. A request that names a version keeps it."""
        if not isinstance(name, str) or names_version(name):
            return name
        policy = name.removesuffix(f"@{LATEST}")
        version = pinned_version(self.version, policy)
        return name if version is None else f"{policy}@{version}"


class RolloutPins:
    """Finds what a rollout is pinned to: by the headers of a request, or by its registration.

    Args:
        book: The registrations.
    """

    def __init__(self, book: RolloutRepository) -> None:
        self._book = book

    async def of(self, rollout: str | None, headers: Mapping[str, str]) -> RequestPins:
        """What holds for a request. A header counts more than the registration.

        Args:
            rollout: Id of the rollout; None: the request belongs to none.
            headers: Headers of the request.

        Raises:
            APIError: 400 for a header that is no temperature or no version.
            LedgerError: The registration cannot be read.
        """
        temperature, version = _temperature(headers), _version(headers)
        if rollout is None:
            return RequestPins(temperature)
        known, spec = self._book.known_spec(rollout)
        if not known:
            spec = await asyncio.to_thread(self._book.spec, rollout)
        if spec is None:
            return RequestPins(temperature, version)
        return RequestPins(
            spec.temperature if temperature is None else temperature,
            spec.version if version is None else version,
            spec.hints,
        )


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
    return "latest" if text == LATEST else version_number(text)
