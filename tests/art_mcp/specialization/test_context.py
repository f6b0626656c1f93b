"""What the stages of a run share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from art_langgraph import LLM
from art_langgraph.llm.trainer_model import POLICY, TrainerModel
from art_mcp import GenerationSettings
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.run_directory import RunDirectory
from art_mcp.specialization.settings import SpecializeOptions
from art_mcp.specialization.stage_runner import Budget, StageRunner
from trainer_server.common import Connection


def context_of(output: Path, generation: GenerationSettings) -> RunContext:
    directory = RunDirectory(output, {}, resume=False)
    parts: dict[str, Any] = {
        "server": None,
        "trainer": SimpleNamespace(connection=Connection("http://127.0.0.1:9", "key")),
        "policy": SimpleNamespace(base_model="org/tiny"),
        "runner": StageRunner(directory, Budget(None), lambda line: None, lambda: None),
    }
    return RunContext(options=SpecializeOptions("server", policy="p", generation=generation), **parts)


def test_policy_is_the_base_model_of_the_trainer_server_of_the_run(tmp_path: Path) -> None:
    generation = context_of(tmp_path, GenerationSettings(model=POLICY, paraphrase=POLICY)).options.generation
    for model in (generation.model, generation.paraphrase):
        assert isinstance(model, TrainerModel)
        assert model.model == "org/tiny"


def test_the_usage_of_the_model_that_writes_is_counted(tmp_path: Path) -> None:
    model = LLM("writer", base_url="http://127.0.0.1:9", cache=None)
    context = context_of(tmp_path, GenerationSettings(model=model))
    model.usage.calls += 3
    assert context.usage()["scenarios"].calls == 3
