"""Progress of long work: bars on the terminal, several at once, and the stages of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich import get_console
from rich.errors import LiveError
from rich.progress import Progress, ProgressColumn


@contextmanager
def progress_bar(*columns: ProgressColumn, shown: bool = True) -> Iterator[Progress]:
    """Shows a progress bar until the block ends, and removes it. Where there is no terminal and no notebook, it shows
    none: rich would print empty lines there.

    Versions of rich before 14 show one live display at a time, on a terminal or not. A bar that begins there while
    another display is shown is not shown; its methods can be called all the same.

    Args:
        columns: What the bar consists of.
        shown: Whether to show it.
    """
    console = get_console()
    shown = shown and (console.is_terminal or console.is_jupyter)
    bar = Progress(*columns, transient=True, disable=not shown)
    try:
        bar.start()
    except LiveError:
        bar = Progress(*columns, disable=True)
    try:
        yield bar
    finally:
        bar.stop()


def losses(measurements: Mapping[str, float]) -> str:
    """The losses of a running job in words; empty where none was measured.

    Args:
        measurements: Newest measurements of the job, by name; only `loss` and `validation_loss` are used.
    """
    names = {"loss": "loss", "validation_loss": "held-out loss"}
    return ", ".join(f"{label} {measurements[name]:.3f}" for name, label in names.items() if name in measurements)


class Stages:
    """Reports the stages of a long run, and measures their wall time.

    Args:
        on_stage: Called with a line of text when a stage begins, and by the caller for other messages.
    """

    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        """Wall time of each stage that has ended, by its name."""
        self.on_stage = on_stage

    @contextmanager
    def stage(self, name: str, about: str) -> Iterator[None]:
        """A stage: reports `name` and `about` when it begins, and measures it until the block ends."""
        start = time.monotonic()
        self.on_stage(f"{name}: {about}")
        yield
        self.seconds[name] = time.monotonic() - start
