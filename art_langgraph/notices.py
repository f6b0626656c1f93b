"""Warnings about what would otherwise go unnoticed: each with cause and remedy, once per process."""

from __future__ import annotations

import logging
import threading

log = logging.getLogger("art_langgraph")

HELP = 'docs/capture.md, section "When nothing was captured"'

_said: set[str] = set()
_lock = threading.Lock()


def warn_once(cause: str, remedy: str) -> None:
    """Logs a warning, unless this process has logged the same one.

    Args:
        cause: What happened, with the names that it concerns.
        remedy: What the user can do.
    """
    text = f"{cause}. {remedy}. See {HELP}."
    with _lock:
        if text in _said:
            return
        _said.add(text)
    log.warning("%s", text)
