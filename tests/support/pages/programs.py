"""Programs of the machine that tests call, and that not every machine has."""

from __future__ import annotations

import shutil

import pytest


def program(name: str) -> str:
    """Its path. The test is skipped where it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path
