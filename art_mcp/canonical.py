"""JSON values compared by meaning: the order of keys and the spelling of numbers do not matter."""

from __future__ import annotations

import json
from typing import Any


def normal(value: Any) -> Any:
    """The same value with integral floats as integers, and tuples as lists."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(key): normal(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [normal(one) for one in value]
    return value


def canonical(value: Any) -> str:
    """One text for all spellings of a value."""
    return json.dumps(normal(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
