"""The records of a file, one after another: JSON Lines, a JSON array or document, or Parquet; plain or gzipped."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from art_langgraph.traces.problems import Skips, Unreadable
from trainer_server.wire import ConfigError

_CHUNK = 1 << 20
"""Characters that are read at once from a file that is one JSON value."""
_NO_JSON = Unreadable("not JSON", "the export was cut off or edited by hand: export it again, or remove these lines")
_ENCODING = Unreadable("not UTF-8", "export it as JSON in UTF-8")
_DEEP = Unreadable("nested too deeply", "remove these lines")


def read_records(
    path: str | Path, skips: Skips, advance: Callable[[int], None] = lambda _: None
) -> Iterator[tuple[int, Any]]:
    """Reads a file record by record, so that its size does not matter.

    A line that is no JSON is left out. Of a JSON array, what follows a damaged record is left out too.

    Args:
        path: The file. A gzipped file is known by its first bytes, Parquet by its name.
        skips: Gets what was left out.
        advance: Is called with the number of bytes that were read until now.

    Yields:
        The number of a record's line (of its row in Parquet), from 1, and its JSON value.

    Raises:
        ConfigError: The file cannot be read, or Parquet needs a package that is not installed.
    """
    path = Path(path)
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.open(raw) if is_gzip else raw as file:
                yield from _values(cast(IO[bytes], file), skips, lambda: advance(raw.tell()))
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): export it as JSON"
        ) from None


def _values(file: IO[bytes], skips: Skips, advance: Callable[[], None]) -> Iterator[tuple[int, Any]]:
    first = file.readline().removeprefix(b"\xef\xbb\xbf")
    line = 1
    while first and not first.strip():
        first, line = file.readline(), line + 1
    if first.lstrip().startswith(b"[") or (first.strip() and first.rstrip()[-1:] in (b"{", b",", b":")):
        yield from _document(first.decode(), line, file, skips, advance)
        return
    while first:
        advance()
        if first.strip():
            try:
                yield line, json.loads(first)
            except RecursionError:
                skips.note(_DEEP, line)
            except UnicodeDecodeError:
                skips.note(_ENCODING, line)
            except ValueError:
                skips.note(_NO_JSON, line)
        first, line = file.readline(), line + 1


def _document(
    head: str, line: int, file: IO[bytes], skips: Skips, advance: Callable[[], None]
) -> Iterator[tuple[int, Any]]:
    """The elements of an array, or JSON values that go over several lines, decoded as far as they are read."""
    decoder, rest, at_end = json.JSONDecoder(), head.lstrip(), False
    array, chunk_size = rest.startswith("["), _CHUNK
    rest = rest.removeprefix("[") if array else rest
    while True:
        rest, line = _without(rest, " \t\r\n,", line)
        if array and rest.startswith("]"):
            return
        try:
            value, end = decoder.raw_decode(rest)
        except RecursionError:
            skips.note(_DEEP, line)
            return
        except ValueError:
            if at_end:
                if rest or array:
                    skips.note(_NO_JSON, line)
                return
            more = file.read(chunk_size) + file.readline()  # whole lines, so that no character is cut in two
            at_end, chunk_size = not more, chunk_size * 2
            rest += more.decode()
            advance()
            continue
        chunk_size = _CHUNK
        yield line, value
        line, rest = line + rest.count("\n", 0, end), rest[end:]


def _without(text: str, characters: str, line: int) -> tuple[str, int]:
    """A text without these characters at its beginning, and the number of the line in which it then begins."""
    rest = text.lstrip(characters)
    return rest, line + text.count("\n", 0, len(text) - len(rest))


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError("Parquet needs pyarrow: pip install 'art-langgraph[parquet]'") from None
    try:
        number = 0
        with path.open("rb") as file:
            for batch in parquet.ParquetFile(file).iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except import_module("pyarrow").ArrowInvalid as error:
        raise ConfigError(f"{path} is no Parquet file: {error}") from None
