"""The tables of the documentation that follow from the figures of GPUs.

A table stands between two comments of a page, `<!-- gpu: NAME -->` and `<!-- gpu: end -->`. The newest run that
measured a thing counts; rehearsals do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.charts.chart import DOCS

FIGURES = DOCS / "benchmarks" / "gpu.json"
PAGES = (DOCS / "benchmarks" / "gpu.md", DOCS / "scaling" / "index.md")
_BLOCK = re.compile(r"(<!-- gpu: (?P<name>[a-z]+) -->\n).*?(<!-- gpu: end -->)", re.S)

Run = dict[str, Any]
"""A run of benchmarks.gpu, as its --json prints it."""
Row = dict[str, Any]
Cells = Sequence[Any]


def runs_of(figures: Path) -> list[Run]:
    """The runs of a file, the oldest first."""
    runs: list[Run] = json.loads(figures.read_text(encoding="utf-8"))["runs"]
    return runs


def write_pages() -> None:
    """Brings all tables up to date."""
    runs = runs_of(FIGURES)
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), runs), encoding="utf-8")


def with_tables(text: str, runs: Sequence[Run]) -> str:
    """A page with its tables made anew.

    Raises:
        KeyError: It asks for a table that there is not.
    """
    real = [run for run in runs if not run["tiny"]]
    return _BLOCK.sub(lambda block: block[1] + TABLES[block["name"]](real) + block[3], text)


def _newest(runs: Sequence[Run], part: str) -> tuple[Run, list[Row]] | None:
    """The newest run that has figures of a part, and its rows."""
    for run in reversed(runs):
        rows = [row for row in run["parts"].get(part, {}).get("rows", []) if "error" not in row]
        if rows:
            return run, rows
    return None


def _table(heads: Cells, rows: Sequence[Cells]) -> str:
    if not rows:
        return "Not measured yet.\n"
    lines = [heads, *rows]
    texts = [f"| {' | '.join('-' if cell is None else str(cell) for cell in line)} |\n" for line in lines]
    texts.insert(1, f"|{'---|' * len(heads)}\n")
    return "".join(texts)


def _exactness(runs: Sequence[Run]) -> str:
    _, rows = _newest(runs, "exactness") or ({}, [])
    cells = [
        [row["row"], row["dtype"], *(f"{row[name]:.1e}" for name in _ERRORS)] for row in rows if row["rows_shared"]
    ]
    return _table(["model", "dtype", "log-prob", "gradient", "log-prob of stock", "gradient of stock"], cells)


_ERRORS = ("logp_error", "gradient_error", "stock_logp_error", "stock_gradient_error")


def _steps(runs: Sequence[Run]) -> str:
    cells: list[Cells] = []
    for size in ("0.6B", "1.7B", "4B"):
        run, rows = _newest(runs, f"step-{size}") or ({}, [])
        by_name = {row["row"]: row for row in rows}
        for case in "SML":
            if (ours := by_name.get(case)) is None:
                continue
            others = [by_name.get(f"{case}, {side}", {}).get("over_packed") for side in ("padded", "PEFT")]
            rate = f"{ours['tokens_per_s']:,}"
            cells.append([run["date"], size, case, rate, ours["mfu"], ours["first_s"], *others, ours["peak_gib"]])
    heads = ["date", "model", "case", "tokens/s", "MFU", "first step, s", "padded / packed", "PEFT / packed", "GiB"]
    return _table(heads, cells)


def _serving(runs: Sequence[Run]) -> str:
    _, rows = _newest(runs, "serving") or ({}, [])
    by_name = {row["row"]: row for row in rows}
    raw = by_name.get("raw vLLM", {}).get("by_requests", {})
    cells = []
    for row in rows:
        if (match := re.fullmatch(r"gateway, (\d+)", row["row"])) is not None:
            sides = (raw.get(match[1], {}), row, by_name.get(f"graphs, {match[1]}", {}))
            cells.append([match[1], *(side.get("completions_per_s") for side in sides)])
    return _table(["requests at once", "vLLM alone", "through the gateway", "graphs with capture"], cells)


def _loop(runs: Sequence[Run]) -> str:
    cells = []
    for part in ("serving", "turns", "several"):
        run, rows = _newest(runs, part) or ({}, [])
        for row in rows:
            if "by_phase" in row:
                phases = ", ".join(f"{name} {seconds}" for name, seconds in row["by_phase"].items())
                cells.append([run["date"], row["row"], row["seconds"], phases, row["logp_gap"]])
    return _table(["date", "step", "seconds", "by phase", "gap, nats a token"], cells)


def _tested(runs: Sequence[Run]) -> str:
    cells = []
    for path, part, words in _PATHS:
        newest = _newest(runs, part)
        state = "never run yet"
        if newest is not None:
            run, rows = newest
            vllm = f", {run['vllm'].replace('==', ' ')}" if part in _WITH_VLLM and run["vllm"] else ""
            state = f"{run['date']}, {run['device']}, torch {run['torch'].partition('+')[0]}{vllm}: {words(rows)}"
        cells.append([path, state])
    return _table(["path on a GPU", "state"], cells)


def _learnt(rows: Sequence[Row]) -> str:
    (row,) = (row for row in rows if row["row"] == "GRPO")
    return f"success {row['before']} to {row['after']}, {row['steps']} steps in {row['seconds']} s"


def _largest_error(rows: Sequence[Row]) -> str:
    exact = [row for row in rows if row["dtype"] == "float32"]
    logp, gradient = (max(row[name] for row in exact) for name in ("logp_error", "gradient_error"))
    return f"log-probs within {logp:.1g} and gradients within {gradient:.1g} of transformers and PEFT in fp32"


def _done(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(row["row"].partition(",")[0] for row in rows))


_WITH_VLLM = ("learning", "turns", "several")
_PATHS: tuple[tuple[str, str, Callable[[Sequence[Row]], str]], ...] = (
    ("vLLM on CUDA, the quickstart's agent", "learning", _learnt),
    ("FlexAttention, forward and backward", "exactness", _largest_error),
    ("bitsandbytes", "bits", _done),
    ("sleep mode, `--share-gpu`", "turns", _done),
    ("several GPUs, NCCL", "several", _done),
)
TABLES: dict[str, Callable[[Sequence[Run]], str]] = {
    "exactness": _exactness,
    "steps": _steps,
    "serving": _serving,
    "loop": _loop,
    "tested": _tested,
}
