"""Progress bars on the terminal, several at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.errors import LiveError
from rich.progress import Progress, ProgressColumn


@contextmanager
def progress_bar(*columns: ProgressColumn, shown: bool = True) -> Iterator[Progress]:
    """Shows a progress bar until the block ends, and removes it.

    Versions of rich before 14 show one live display at a time, on a terminal or not. A bar that begins there while
    another display is shown is not shown; its methods can be called all the same.

    Args:
        columns: What the bar consists of.
        shown: Whether to show it.
    """
    bar = Progress(*columns, transient=True, disable=not shown)
    try:
        bar.start()
    except LiveError:
        bar = Progress(*columns, disable=True)
    try:
        yield bar
    finally:
        bar.stop()
