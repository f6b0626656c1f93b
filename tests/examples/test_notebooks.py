"""The notebooks of the examples are those that `art_examples.notebooks` writes, and their cells run."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from art_examples import notebooks

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
async def test_the_cells_of_one_run(
    connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    text = notebooks.made()[notebooks.EXAMPLES / "tic_tac_toe" / notebooks.NOTEBOOK]
    settings, *others = cells(text)
    with answers(connected, list("123456789")):
        for cell in [settings.replace("False", "True").replace("24", "4").replace("STEPS = 2", "STEPS = 1"), *others]:
            code = compile(cell, "notebook", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, names)
            if inspect.isawaitable(running):
                await running
    assert len(names["learned"].rewards) == 1
    assert "scenarios to learn from" in capsys.readouterr().out
    assert (tmp_path / "runs/examples/tic_tac_toe/notebook.svg").exists()
