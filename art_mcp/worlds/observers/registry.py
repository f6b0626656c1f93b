"""The observers that are included."""

from __future__ import annotations

from collections.abc import Sequence

from art_mcp.worlds.observers.database import DatabaseObserver
from art_mcp.worlds.observers.files import FileObserver
from art_mcp.worlds.observers.observer import Observer
from art_mcp.worlds.observers.repository import RepositoryObserver

OBSERVERS: tuple[Observer, ...] = (RepositoryObserver(), DatabaseObserver(), FileObserver())
"""In the order in which they are asked whether they claim a file or directory. The last one claims every file."""


def observers_with(own: Sequence[Observer]) -> tuple[Observer, ...]:
    """All observers, with those of the user first."""
    return (*own, *OBSERVERS)
