"""load_graph: a graph of a project, as `langgraph dev` loads it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from dotenv import dotenv_values
from langchain_core.runnables import Runnable

from art_langgraph.loop.graphs import Graph
from art_langgraph.project.langgraph_json import Place, Project
from trainer_server.wire import ConfigError


def load_graph(path: str | Path = "langgraph.json", name: str | None = None) -> Graph:
    """Loads a graph as `langgraph dev` loads it, for `rollout`, `gather`, `evaluate` and `train`.

    The folders of the project's dependencies can be imported from then on, and the variables that its `env` names are
    in the environment; those that are set already stay.

    Args:
        path: The `langgraph.json`, or its folder.
        name: Name of the graph; None: the only one.

    Returns:
        The compiled graph. Where the project has a function that makes a graph of a config: a factory, which is called
        for each run, with an empty config.

    Raises:
        ConfigError: The file, the graph or its module cannot be found; or what it names is no graph.
    """
    project = Project.read(path)
    name, place = project.place(name)
    prepare(project)
    try:
        value = getattr(_module(place), place.variable)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the graph {name!r} ({place}) cannot be imported: {error}. Is the project installed, with what it needs?"
        ) from error
    if isinstance(value, Runnable):
        return value
    if hasattr(value, "compile"):
        graph: Runnable[Any, Any] = value.compile()
        return graph
    if not callable(value):
        raise ConfigError(f"the graph {name!r} ({place}) is a {type(value).__name__}, neither a graph nor a function")
    return _factory(value)


def prepare(project: Project) -> None:
    """Sets the project's environment variables, where they are not set, and makes its folders importable."""
    environment = project.environment
    values = dotenv_values(environment) if isinstance(environment, Path) else environment or {}
    for variable, value in values.items():
        if value is not None:
            os.environ.setdefault(variable, value)
    folders = [str(folder) for folder in (project.folder, *project.dependencies)]
    sys.path.extend(folder for folder in dict.fromkeys(folders) if folder not in sys.path)


def _module(place: Place) -> ModuleType:
    if isinstance(place.source, str):
        return importlib.import_module(place.source)
    name = "_".join(part for part in place.source.with_suffix("").parts if part != os.sep)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place.source)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _factory(make: Callable[..., Any]) -> Callable[[], Any]:
    """A factory for rollouts, of a function that takes a config, or nothing."""
    takes = [
        parameter for parameter in inspect.signature(make).parameters.values() if parameter.default is parameter.empty
    ]

    async def graph() -> Runnable[Any, Any] | AbstractAsyncContextManager[Any]:
        result = make(*({"configurable": {}} for _ in takes))
        result = await result if inspect.isawaitable(result) else result
        graph_or_context: Runnable[Any, Any] | AbstractAsyncContextManager[Any] = result
        return result.compile() if hasattr(result, "compile") and not isinstance(result, Runnable) else graph_or_context

    return graph
