"""Compares JSON values by meaning: the order of keys and the spelling of numbers (1 and 1.0) do not matter."""

from __future__ import annotations

import json
from typing import Any


def normal(value: Any) -> Any:
    """Converts integral floats to integers, tuples to lists, and keys to texts, at every depth."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(key): normal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    return value


def canonical(value: Any) -> str:
    """The value as JSON text. Values with the same meaning have the same text."""
    return json.dumps(normal(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
