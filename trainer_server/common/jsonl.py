"""JSON, and JSON Lines: one reader and one writer for every file and stream that has one JSON value a line.

Models emit half surrogate pairs, which UTF-8 cannot hold and pydantic refuses; JSON can escape them. Text of any
language may have U+2028 or U+0085 in it, at which `str.splitlines` would end a line.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from trainer_server.wire.errors import ConfigError
from trainer_server.wire.text import writable

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def to_json(record: Any) -> str:
    """A record as JSON in one line, which UTF-8 can hold: half surrogate pairs are escaped.

    Args:
        record: A pydantic model or a JSON value.
    """
    if isinstance(record, BaseModel):
        try:
            return record.model_dump_json()
        except PydanticSerializationError:  # half a surrogate pair
            record = record.model_dump()
    return writable(json.dumps(record, ensure_ascii=False, default=to_jsonable_python))


def from_json(kind: type[M], text: str) -> M:
    """The record of a class that `to_json` wrote. Raises ValueError (pydantic's ValidationError is one)."""
    try:
        return kind.model_validate_json(text)
    except ValidationError:  # of half a surrogate pair; an error of any other kind comes again
        try:
            return kind.model_validate(json.loads(text))
        except RecursionError:
            raise ValueError("it is nested too deeply to be read") from None


def read_jsonl(
    path: str | Path, parse: Callable[[Any], T], *, what: str = "record", skip: Callable[[str], None] | None = None
) -> Iterator[T]:
    """Reads a file with one JSON value a line. Blank lines are skipped.

    A line ends at a line feed and nowhere else, so that text with U+2028 or U+0085 in it stays in one line.

    Args:
        path: The file, in UTF-8, with or without a byte order mark.
        parse: Makes a record of a line's JSON value. Raises ValueError (pydantic's ValidationError is one), TypeError
            or KeyError for a value that is no record.
        what: What a line should be, for messages: "scenario".
        skip: Called with what is wrong with a line, which is then left out; None: such a line is an error.

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
        wrong = f"is no {what}"
        try:
            try:
                value = json.loads(line.decode())
            except RecursionError:
                wrong = "is not JSON"
                raise ValueError("it is nested too deeply to be read") from None
            except ValueError:
                wrong = "is not JSON"
                raise
            record = parse(value)
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            message = f"{path}, line {number} {wrong}: {explain(error)}"
            if wrong == "is not JSON" and line.strip() in (b"[", b"{"):
                message += ". Each line must be a JSON value of its own (JSONL), and this one goes on in the next line"
            if skip is None:
                raise ConfigError(message) from None
            skip(message)
            continue
        yield record


def write_jsonl(path: str | Path, records: Iterable[Any]) -> int:
    """Writes records to a file, one a line, and returns how many. The file gets all of them, or stays as it was.

    Only the user may read a new file, since it has what people and models wrote. A file that is replaced keeps its
    permissions.

    Args:
        path: The file to write or to replace. Its directory must exist.
        records: Pydantic models or JSON values.
    """
    path, count = Path(path), 0
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n", opener=_private) as out:
            if path.exists():
                os.chmod(partial, path.stat().st_mode & 0o777)
            for record in records:
                out.write(to_json(record) + "\n")
                count += 1
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def append_jsonl(path: str | Path, records: Iterable[Any]) -> None:
    """Appends records to a file, one a line. The file gets all of them, or stays as it was.

    Several processes may append at once, except on Windows. A line that a killed process left incomplete is ended
    first, so that it spoils no other. Only the user may read a new file.

    Args:
        path: The file to append to, or to create. Its directory must exist.
        records: Pydantic models or JSON values.

    Raises:
        OSError: The file cannot be written.
    """
    data = "".join(to_json(record) + "\n" for record in records).encode()
    with open(path, "ab+", buffering=0, opener=_private) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                data = b"\n" + data
        count = 0
        try:
            while count < len(data):  # usually one write; the system may write less than all of it
                count += file.write(data[count:])
        except OSError:
            if os.fstat(file.fileno()).st_size == size + count:  # no other process has appended meanwhile
                file.truncate(size)
            raise


class LineTooLong(ValueError):
    """A line of a stream has more bytes than any line should have."""


async def lines_of(chunks: AsyncIterable[bytes], *, most_bytes: int) -> AsyncIterator[str]:
    """The lines of a stream in UTF-8, one by one; otherwise as `line_batches_of`."""
    async for batch in line_batches_of(chunks, most_bytes=most_bytes):
        for line in batch:
            yield line.decode()


async def line_batches_of(chunks: AsyncIterable[bytes], *, most_bytes: int) -> AsyncIterator[list[bytes]]:
    """The lines of a stream, without their ends: those that each of its chunks completes, together. A line ends at a
    line feed, or at the end of the stream.

    Args:
        chunks: The stream.
        most_bytes: Size of a line up to which it is kept.

    Raises:
        LineTooLong: A line has more bytes.
    """
    rest: list[bytes] = []
    size = 0
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest.append(first)
        size += len(first)
        if others:
            last = others.pop()
            yield [line.removesuffix(b"\r") for line in (b"".join(rest), *others)]
            rest, size = [last], len(last)
        if size > most_bytes:
            raise LineTooLong(f"a line of the stream has more than {most_bytes / 2**20:.0f} MiB")
    if last := b"".join(rest):
        yield [last]


def explain(error: Exception) -> str:
    """What was wrong, in one line: of a ValidationError the first of its errors, with the field."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _private(path: str, flags: int) -> int:
    """Opens a file. One that is made here can be read by the user only."""
    return os.open(path, flags, 0o600)
