"""What this process stores and reports of texts: what the function that `ART_REDACT` names makes of them.

The runs in memory keep their texts, for rewards and judges. The trajectory store, and what is sent to the trainer
server's dashboard, get the redacted ones.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import TypeVar

from pydantic import BaseModel

from trainer_server.common.jsonl import from_json, to_json
from trainer_server.common.plugins import Redactor

VARIABLE = "ART_REDACT"
"""The environment variable: `module:function` of a function from text to text."""
Record = TypeVar("Record", bound=BaseModel)


def redact(record: Record) -> Record:
    """A record as it is stored: itself where the variable is not set, or a copy with its texts redacted.

    Args:
        record: A run, a part of one, a score, or what a rollout is registered with.

    Raises:
        ConfigError: There is no such function.
    """
    if not (name := os.environ.get(VARIABLE)):
        return record
    redactor = _redactor(name)
    return from_json(type(record), to_json(redactor.record(json.loads(to_json(record)))))


@cache
def _redactor(name: str) -> Redactor:
    return Redactor(VARIABLE, name)
