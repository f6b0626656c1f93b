"""Names of the formats of other trainers."""

from __future__ import annotations

from enum import StrEnum


class TrainerFormat(StrEnum):
    """What `trajectories export --format` writes."""

    trl = "trl"
    openai_sft = "openai-sft"
    verifiers = "verifiers"
