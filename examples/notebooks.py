"""Writes the notebook of each example: the same stages as its command, one a cell, so that one can look in between.

    python -m art_examples.notebooks

It needs a clone of the repository. The tests hold the notebooks against this file, and run the cells of one of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent
NOTEBOOK = "notebook.ipynb"
TASKS = {
    "codenames": "codenames",
    "deep_research": "deep_research",
    "email_search": "email_search",
    "game_2048": "game_2048",
    "multi_agent": "multi_agent",
    "openai_agents": "openai_agents",
    "plain_openai": "plain_openai",
    "sql_agent": "sql",
    "temporal_clue": "temporal_clue",
    "tic_tac_toe": "tic_tac_toe",
}
"""By example: the function of `task.py` that makes its task."""
LEARNERS = {
    "autorl": ("from art_examples.autorl.learner import from_a_sentence", "from_a_sentence"),
    "langgraph_dev": ("from art_examples.langgraph_dev.learner import from_feedback", "from_feedback"),
    "mcp_specialize": (
        "from art_examples.mcp_specialize.learner import specialized\n"
        "from art_examples.mcp_specialize.servers import SERVERS",
        'specialized("weather", SERVERS["weather"])',
    ),
    "remote_gpu": ("from art_examples.remote_gpu.learner import on_the_server", "on_the_server"),
}
"""By example without a task of its own: what to import, and its learner."""
SET_UP = """
The notebook runs in an environment of the repository: `make engine`, then `.venv/bin/pip install jupyterlab`, then
`.venv/bin/jupyter lab`. With the settings below it takes some minutes on two CPU cores, and is too short to learn much.
"""
SETTINGS = """
STEPS = 2
HELD_OUT = 24
SEED = 0
CONNECT = False  # True: the running server that ART_BASE_URL and ART_API_KEY name, such as one with a GPU
"""
SERVER = """
from contextlib import AsyncExitStack, nullcontext

from art_examples.learning.runs import own_server

from art_langgraph import TrainerClient
from trainer_server.common import Connection

stack = AsyncExitStack()
server = stack.enter_context(nullcontext(Connection.find()) if CONNECT else own_server())
client = await stack.enter_async_context(TrainerClient(server.url, server.api_key))
policy = f"notebook-{SEED}"
"""
TASK = """
from art_examples.{example}.task import {maker}

whole = await stack.enter_async_context({maker}(SEED))
task = whole.short(steps=STEPS, held_out=HELD_OUT)
print(f"{{len(task.training)}} scenarios to learn from, {{len(task.held_out)}} held out")
print(f"{{len(task.demonstrations)}} demonstrations")
print(task.training[0].input)
"""
BEFORE = """
from art_examples.learning.learn import Learning

learning = Learning(task, SEED, client, policy, print)
await learning.create()
before = await learning.measure("before")
for run in before.trajectories[:3]:
    print(run.reward, run.metrics, run.final_text)
"""
WARM = """
if task.recipe.warm_start is not None:
    await learning.warm_start()
    await learning.measure("warm")
"""
TRAIN = """
groups = await learning.train()
after = await learning.measure("after")
learned = learning.learned
"""
RUNS = "from art_examples.learning.runs import Options, Run"
LEARN = """
run = Run(seed=SEED, client=client, policy=policy, options=Options(steps=STEPS, held_out=HELD_OUT), tell=print)
learned = await {learner}(run)
"""
PICTURE = """
from pathlib import Path

from art_examples.learning.curve import draw
from IPython.display import SVG

row, picture = learned.as_json(), Path("runs/examples/{example}/notebook.svg")
draw(picture, [row])
print({{stage: row[stage]["success"] for stage in ("before", "warm", "after") if row[stage]}})
SVG(picture.read_text())
"""
END = """
await stack.aclose()
"""


def notebook(example: str, readme: str) -> str:
    """The text of a notebook.

    Args:
        example: Folder of the example.
        readme: Its README.md.
    """
    head = readme.partition("\n```")[0]
    cells = [_text(f"{head.strip()}\n{SET_UP}"), _code(SETTINGS), _text("## The trainer server"), _code(SERVER)]
    if maker := TASKS.get(example):
        cells += [
            _text("## The task"), _code(TASK.format(example=example, maker=maker)),
            _text("## Before training"), _code(BEFORE),
            _text("## A warm start: the policy imitates demonstrations that were made by script"), _code(WARM),
            _text("## Training with GRPO"), _code(TRAIN),
        ]  # fmt: skip
    else:
        imported, learner = LEARNERS[example]
        imports = "\n".join(sorted([RUNS, *imported.splitlines()]))
        learning = f"{imports}\n\n{LEARN.format(learner=learner).strip()}"
        cells += [_text("## Learning, and the measurements"), _code(learning)]
    cells += [_text("## The result"), _code(PICTURE.format(example=example)), _code(END)]
    whole = {
        "cells": [{**cell, "id": f"cell-{at}"} for at, cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _text(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip().splitlines(keepends=True)}


def _code(text: str) -> dict[str, Any]:
    source = text.strip().splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}


def made(examples: Path = EXAMPLES) -> dict[Path, str]:
    """The notebooks by their paths, as they should be. examples: the folder of the examples."""
    return {
        examples / name / NOTEBOOK: notebook(name, (examples / name / "README.md").read_text())
        for name in sorted({*TASKS, *LEARNERS})
    }


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text)
        print(path)
