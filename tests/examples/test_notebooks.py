"""The notebooks of the examples are those that `art_examples.notebooks` writes, and their cells run."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import nbformat
import pytest
from art_examples import notebooks
from nbclient import NotebookClient

from tests.support.runs.tasks import answers
from tests.support.servers.trainer_server import TrainerServer

COMMAND = "run `python -m art_examples.notebooks` and commit what it writes"


def cells(text: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def test_every_example_has_the_notebook_that_is_made_of_it() -> None:
    made = notebooks.made()
    examples = {path.parent for path in notebooks.EXAMPLES.glob("*/README.md")}
    assert {path.parent for path in made} == examples, "a new example belongs into TASKS or LEARNERS"
    assert {path: path.read_text() for path in notebooks.EXAMPLES.glob(f"*/{notebooks.NOTEBOOK}")} == made, COMMAND


@pytest.mark.parametrize("path", notebooks.made(), ids=lambda path: path.parent.name)
def test_what_its_cells_import_is_there(path: Path) -> None:
    for cell in cells(notebooks.made()[path]):
        tree = compile(cell, str(path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        exec(compile(ast.Module(list[ast.stmt](imports), []), str(path), "exec"), {})


@pytest.mark.slow
async def test_a_notebook_runs_from_top_to_bottom_and_shows_its_curve(connected: TrainerServer, tmp_path: Path) -> None:
    book = nbformat.reads(notebooks.made()[notebooks.EXAMPLES / "tic_tac_toe" / notebooks.NOTEBOOK], as_version=4)
    settings = next(cell for cell in book.cells if cell.cell_type == "code")
    changes = {"CONNECT = False": "CONNECT = True", "HELD_OUT = 24": "HELD_OUT = 4", "STEPS = 2": "STEPS = 1"}
    for given, short in changes.items():
        settings.source = settings.source.replace(given, short)
    kernel = NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    with answers(connected, list("123456789")):
        await kernel.async_execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert "scenarios to learn from" in text
    assert text.count("step 1: ") == 1
    (picture,) = (output.data["image/svg+xml"] for output in outputs if output.output_type == "execute_result")
    assert "seed 0" in picture
    assert (tmp_path / "runs/examples/tic_tac_toe/notebook.svg").exists()
