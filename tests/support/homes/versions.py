"""Versions as the trainer publishes them, made by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from trainer_server.engines.local_slots import LocalSlots
from trainer_server.engines.pool import Engines
from trainer_server.policies.leases import LocalLeases
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import OPTIMIZER, AdapterStore
from trainer_server.wire import Version


def slots_over(
    store: AdapterStore, names: PolicyNames, engines: Engines, leases: LocalLeases | None = None
) -> LocalSlots:
    """Four slots for the versions of a store."""
    return LocalSlots(
        engines=engines,
        capacity=4,
        directory=store.directory,
        pinned_versions=(leases or LocalLeases(900.0)).versions,
        is_named=names.is_named,
    )


def holders(leases: LocalLeases) -> dict[str, list[str]]:
    """The policies of which each rollout holds a version."""
    return {
        rollout: [lease.policy for lease in held.leases]
        for span in leases._spans
        for rollout, held in span.rollouts.items()
    }


def publish(store: AdapterStore, policy: str, number: int, **record: Any) -> None:
    aside = store.staging(policy, number)
    save_file({"lora_A": np.ones((2, 2), np.float32)}, aside / "adapter_model.safetensors")
    save_file({"rng": np.ones(2, np.uint8)}, aside / OPTIMIZER)
    (aside / "adapter_config.json").write_text("{}")
    (aside / "trainer.json").write_text(json.dumps({"updates": number}))
    store.publish(aside, Version(policy=policy, version=number, created=0.0, **record))
