"""Names of the HTTP headers that clients and the server agree on."""

from __future__ import annotations

ROLLOUT = "X-ART-Rollout"
"""Id of the rollout that a completion belongs to: pins one policy version for all of its completions (a lease)."""

TEMPERATURE = "X-ART-Temperature"
"""Overrides the sampling temperature that a graph hard-codes. The ledger records the effective one."""
