"""Digests, which people shorten."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from art_mcp.scenarios.observe import Finding

_SHORT = "{short}"
"""Marks the beginning of a digest, by which people name what has it. No name has such a word."""

_DIGEST = re.compile(r"[0-9a-f]{32,}")


def is_digest(value: Any) -> bool:
    """Whether a value is a hash, which people shorten."""
    return bool(_DIGEST.fullmatch(str(value)))


def short(value: str) -> str:
    """The beginning of a digest; any other value as it is."""
    return value[:8] if is_digest(value) else value


def is_short_digest(finding: Finding) -> bool:
    """Whether a value is the beginning of a digest."""
    return _SHORT in finding.about


def short_digests(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The beginnings of digests."""
    for finding in findings:
        if isinstance(finding.value, str) and is_digest(finding.value):
            yield Finding(None, finding.own, finding.about | {_SHORT}, short(finding.value))
