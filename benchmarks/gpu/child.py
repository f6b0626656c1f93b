"""The process of a part: `python -m benchmarks.gpu.child NAME --rows FILE`, which benchmarks.gpu starts."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import PARTS, Options


class Rows:
    """Measures rows one by one, and writes each at once; one that fails does not end the others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.failures = 0

    def measure(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The figures of a row; None: it failed, which the row says.

        Args:
            name: Of the row.
            work: Measures it.
        """
        begin = time.monotonic()
        try:
            figures = work()
        except Exception as error:
            traceback.print_exc()
            self.failures += 1
            self._write({"row": name, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"})
            return None
        self.add(name, {**figures, "took_s": round(time.monotonic() - begin, 2)})
        return figures

    def add(self, name: str, figures: dict[str, Any]) -> None:
        """Writes a row that is measured already."""
        self._write({"row": name, **figures})

    def _write(self, row: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[part.name for part in PARTS])
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--model")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers end with this process
    rows = Rows(given.rows)
    (part,) = (part for part in PARTS if part.name == given.part)
    kind, _, rest = part.name.partition("-")
    options = Options(device=given.device, tiny=given.tiny, model=given.model, scratch=given.scratch)
    getattr(import_module(f"benchmarks.gpu.{part.module}"), kind)(options, rows, *([rest] if rest else []))
    sys.exit(1 if rows.failures else 0)


if __name__ == "__main__":
    main()
