"""Warnings about what would otherwise go unnoticed: each with cause and remedy, once per process."""

from __future__ import annotations

import logging
import threading

log = logging.getLogger("art_langgraph")

HELP = "docs/capture/nothing-captured.md"

_notices: set[tuple[str, str]] = set()
_lock = threading.Lock()


def warn_once(cause: str, remedy: str, *, example: str = "") -> None:
    """Logs a warning, unless this process has logged one of the same cause and remedy.

    Args:
        cause: What happened, with the names that it concerns.
        remedy: What the user can do.
        example: Where it happened first, such as the id of a run.
    """
    with _lock:
        if (cause, remedy) in _notices:
            return
        _notices.add((cause, remedy))
    first = f" (first seen: {example})" if example else ""
    log.warning("%s%s. %s. See %s.", cause, first, remedy, HELP)
