"""Tables of PostgreSQL, written anew so that their files keep nothing of what was deleted: for servers and clients."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

_PATIENCE = 5.0
"""Seconds for other transactions to end."""
_PAUSE = 0.2


def rewrite(db: Any, tables: Iterable[str]) -> dict[str, str]:
    """Writes tables anew, and those that other transactions still see again, for some seconds.

    Args:
        db: A connection of psycopg in autocommit mode.
        tables: Their names.

    Returns:
        The tables in whose files deleted rows may be left, and why.
    """
    deadline = time.monotonic() + _PATIENCE
    while reasons := {table: why for table in tables if (why := _rewrite(db, table))}:
        if time.monotonic() >= deadline:
            break
        time.sleep(_PAUSE)
        tables = list(reasons)
    return reasons


def _rewrite(db: Any, table: str) -> str:
    """Writes a table anew. Returns why deleted rows may be left in its files; empty: none are."""
    reasons = list[str]()

    def read_notice(notice: Any) -> None:
        if notice.severity_nonlocalized == "WARNING":
            reasons.append(f"{notice.message_primary}")
        # "3 dead row versions cannot be removed yet", in the language of the database
        elif (rows := re.search(r"[0-9]+", notice.message_detail or "")) and int(rows[0]):
            reasons.append(f"another transaction still sees {rows[0]} deleted rows")

    db.add_notice_handler(read_notice)
    try:
        db.execute(f"VACUUM (FULL, VERBOSE) {table}")
    finally:
        db.remove_notice_handler(read_notice)
    return "; ".join(reasons)
