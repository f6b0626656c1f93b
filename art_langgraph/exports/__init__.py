"""Recorded runs on their way out: with their tokens to another server, and as files that other trainers read."""

from __future__ import annotations

from enum import StrEnum


class TrainerFormat(StrEnum):
    """Formats of `trajectories export --format`."""

    trl = "trl"
    openai_sft = "openai-sft"
    verifiers = "verifiers"
