"""JSON Lines: one reader and one writer for every file that has one JSON value a line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from trainer_server.wire import ConfigError

T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair: models emit them, UTF-8 cannot hold them, and JSON can escape them."""


def read_jsonl(path: str | Path, parse: Callable[[Any], T], *, what: str = "record") -> Iterator[T]:
    """Reads a file with one JSON value a line. Blank lines are skipped.

    A line ends at a line feed and nowhere else, so that text with U+2028 or U+0085 in it stays in one line.

    Args:
        path: The file, in UTF-8, with or without a byte order mark.
        parse: Makes a record of a line's JSON value. Raises ValueError (pydantic's ValidationError is one) or TypeError
            for a value that is no record.
        what: What a line should be, for messages: "scenario".

    Raises:
        ConfigError: The file cannot be read, or a line is not JSON or no record. The message names file and line.
    """
    try:
        lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode())
        except ValueError as error:
            raise ConfigError(f"{path}, line {number} is not JSON: {error}") from None
        try:
            record = parse(value)
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}, line {number} is no {what}: {explain(error)}") from None
        yield record


def write_jsonl(path: str | Path, records: Iterable[Any]) -> int:
    """Writes records to a file, one a line, and returns how many. The file gets all of them, or stays as it was.

    Args:
        path: The file to write or to replace. Its directory must exist.
        records: Pydantic models or JSON values.
    """
    path, count = Path(path), 0
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as out:
            for record in records:
                out.write(to_line(record))
                count += 1
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def to_line(record: Any) -> str:
    """A record as a line of a JSONL file, its line feed included. Lone surrogates are escaped, which JSON allows."""
    if isinstance(record, BaseModel):
        try:
            return record.model_dump_json() + "\n"
        except PydanticSerializationError:  # a lone surrogate, which pydantic refuses to write
            record = record.model_dump(mode="json")
    text = json.dumps(record, ensure_ascii=False)
    return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text) + "\n"


def explain(error: Exception) -> str:
    """What was wrong, in one line: of a ValidationError the first of its errors, with the field."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
