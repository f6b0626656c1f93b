"""The README's loop is code that runs: it compiles, its imports resolve, and its graph and reward do what it says."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel

from art_langgraph import evaluate

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def readme() -> Any:
    """The names that the README's loop defines."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (loop,) = (block for block in blocks if "async def main" in block)
    module = ModuleType("readme_loop")
    exec(compile(loop, "README.md", "exec"), module.__dict__)
    return module


async def test_the_loop_of_the_readme_measures_what_it_says(readme: Any) -> None:
    assert len(readme.training) == 70
    assert not {one.id for one in readme.training} & {one.id for one in readme.validation}
    right = [one.metadata["answer"] for one in readme.validation[:3]]
    graph = readme.build_graph(FakeListChatModel(responses=[f"That is {right[0]}.", "No idea.", f"{right[2]}"]))
    measured = await evaluate(graph, readme.validation[:3], readme.reward, max_concurrency=1, progress=False)
    assert measured.rewards == [1.0, 0.0, 1.0]
