"""Steps of the wall clock, in the processes of a server alone."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock_step.c")


class Clock:
    """A library that processes preload, and the file that tells it by how much their clock is off.

    The machine's own clock is left alone: other programs go by it.

    Args:
        where: A directory.

    Attributes:
        unavailable_reason: Why the clock cannot be stepped; None: it can.
    """

    def __init__(self, where: Path) -> None:
        self._library, self._file = where / "clock_step.so", where / "clock_step"
        self.unavailable_reason: str | None = None
        if (compiler := shutil.which("cc")) is None:
            self.unavailable_reason = "there is no C compiler (cc)"
            return
        line = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE), "-ldl"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            self.unavailable_reason = f"{_SOURCE.name} cannot be compiled: {done.stderr[-300:]}"
            return
        self.step(0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the processes whose clock is stepped."""
        return {} if self.unavailable_reason else {"LD_PRELOAD": str(self._library), "ART_CLOCK_STEP": str(self._file)}

    @property
    def options(self) -> list[str]:
        """Options of `serve` that give the trainer the same clock."""
        return [word for name in self.environment for word in ("--trainer-env", name)]

    def step(self, seconds: int) -> None:
        """Sets by how much the clock is off, at once in all processes."""
        mode = "r+b" if self._file.exists() else "wb"
        with self._file.open(mode) as file:
            file.write(struct.pack("@l", seconds))
