"""Names of the HTTP headers that clients and the server agree on."""

from __future__ import annotations

from collections.abc import Mapping

from trainer_server.wire.policies import VersionRef

ROLLOUT = "X-ART-Rollout"
"""Id of the rollout that a request belongs to. The server pins the rollout to one version of the policy (a lease)."""

TEMPERATURE = "X-ART-Temperature"
"""Sampling temperature that overrides the one in the request, which a graph may hard-code. The ledger records the
effective temperature."""

VERSION = "X-ART-Version"
"""Version that the rollout asks of the policies that requests name without one: `3` for all, or `agent=3,critic=1`;
`latest` in place of a number is the newest one when the rollout begins, `follow` the newest one at each call."""

COMPLETION = "X-ART-Completion"
"""Of an answer, or of an error that the ledger records: the id of its completion there, whichever API was asked."""

REQUEST = "X-Request-Id"
"""Id of a request. The server takes that of the client, or makes one; it is in the answer, and in the server's log."""


def version_text(version: int | Mapping[str, VersionRef]) -> str:
    """A version as the header VERSION has it."""
    if isinstance(version, Mapping):
        return ",".join(f"{policy}={number}" for policy, number in version.items())
    return str(version)
