"""`python -m tests.support.extensions.imports COPY`: for each extension, whether everything else works without it.

Each extension is moved out of the copy, and a fork imports all other modules and prints the help. The packages of
others are imported once, before. Prints JSON: by module of the extension, what went wrong; empty: nothing.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

THIRD_PARTY = (
    "fastapi", "httpx", "jinja2", "langchain_openai", "langgraph.graph", "mcp", "peft", "psycopg", "psycopg_pool",
    "torch", "transformers", "typer.testing", "uvicorn",
)  # fmt: skip


@contextmanager
def moved_out(path: Path) -> Iterator[None]:
    away = path.with_name(f"{path.name}-away")  # no name of a module
    path.rename(away)
    try:
        yield
    finally:
        away.rename(path)


def modules(folder: Path) -> Iterator[str]:
    for package in ("art_langgraph", "art_mcp", "trainer_server"):
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if "vllm_plugins" not in parts and parts[-1] != "__main__" and all(part.isidentifier() for part in parts):
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def check(folder: Path, missing: str, answer: Connection) -> None:
    """In a fork: imports what is left, and prints the help."""
    from trainer_server.common.extensions import EXTENSIONS

    rows = [row for row in EXTENSIONS if missing in (row.module, *row.needs)]
    absent = tuple(f"{module}." for row in rows for module in (row.module, row.registrar) if module)
    try:
        for module in modules(folder):
            if not f"{module}.".startswith(absent):
                importlib.import_module(module)
        from typer.testing import CliRunner

        from art_langgraph.cli.main import build

        result = CliRunner().invoke(build(), ["--help"])
        answer.send("" if result.exit_code == 0 else result.output)
    except BaseException:
        answer.send(traceback.format_exc())


def main(folder: Path) -> None:
    from tests.support.extensions.copies import place_of
    from trainer_server.common.extensions import EXTENSIONS

    for module in THIRD_PARTY:
        importlib.import_module(module)
    problems = {}
    fork = multiprocessing.get_context("fork")
    for extension in EXTENSIONS:
        receive, send = fork.Pipe(duplex=False)
        with moved_out(place_of(folder, extension)):
            child = fork.Process(target=check, args=(folder, extension.module, send))
            child.start()
            problems[extension.module] = receive.recv()
            child.join()
    print(json.dumps(problems))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
