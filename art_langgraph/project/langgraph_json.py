"""Project: what a `langgraph.json` says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_server.wire import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a graph is defined.

    Args:
        source: The Python file, or the name of a module that can be imported.
        variable: The name in it.
    """

    source: Path | str
    variable: str

    def __str__(self) -> str:
        return f"{self.source}:{self.variable}"


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with a `langgraph.json`.

    Args:
        path: The file.
        graphs: Its graphs by name, each as `path.py:variable` or `module:variable`.
        environment: A file of variables, or the variables. None: it names none.
        dependencies: Folders that the graphs import from, besides the project's own.
    """

    path: Path
    graphs: dict[str, str]
    environment: Path | dict[str, str] | None
    dependencies: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        """The folder of the file."""
        return self.path.parent

    @classmethod
    def read(cls, path: str | Path) -> Project:
        """Reads a project.

        Args:
            path: The `langgraph.json`, or its folder.

        Raises:
            ConfigError: There is no such file, or it names no graph.
        """
        path = Path(path).expanduser()
        path = (path / "langgraph.json" if path.is_dir() else path).absolute()
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"there is no {path}: name the folder of a project that has one") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
        if not isinstance(content, dict) or not isinstance(content.get("graphs"), dict) or not content["graphs"]:
            raise ConfigError(f'{path} names no graph: it needs "graphs": {{"agent": "./agent.py:graph"}}')
        graphs = {name: _where(path, name, graph) for name, graph in content["graphs"].items()}
        env, dependencies = content.get("env"), content.get("dependencies") or []
        environment = path.parent / env if isinstance(env, str) else env and {k: str(v) for k, v in env.items()}
        folders = (path.parent / dependency for dependency in dependencies if isinstance(dependency, str))
        return cls(path, graphs, environment or None, tuple(folder.resolve() for folder in folders if folder.is_dir()))

    def place(self, name: str | None = None) -> tuple[str, Place]:
        """A graph's name, and where it is defined.

        Args:
            name: Name of the graph; None: the only one.

        Raises:
            ConfigError: There is no such graph, or several and no name; or it is not Python, or its file is missing.
        """
        if name is None and len(self.graphs) > 1:
            first = next(iter(self.graphs))
            how = f'by `art-langgraph init --graph {first}`, or `load_graph(…, "{first}")`'
            raise ConfigError(f"{self.path} has the graphs {', '.join(self.graphs)}: say which, {how}")
        name = next(iter(self.graphs)) if name is None else name
        if name not in self.graphs:
            raise ConfigError(f"{self.path} has no graph {name!r}; it has {', '.join(self.graphs)}")
        source, _, variable = self.graphs[name].rpartition(":")
        if not source or not variable:
            raise ConfigError(f"{self.path}: the graph {name!r} is {self.graphs[name]!r}, and not path.py:variable")
        if source.endswith((".js", ".mjs", ".ts", ".mts", ".tsx")):
            raise ConfigError(f"{self.path}: the graph {name!r} is {source}; only graphs in Python can be trained here")
        if "/" not in source and not source.endswith(".py"):
            return name, Place(source, variable)
        if not (file := self.folder / source).is_file():
            raise ConfigError(f"{self.path}: the file of the graph {name!r} is missing: {file}")
        return name, Place(file, variable)


def _where(path: Path, name: str, graph: Any) -> str:
    where = graph.get("path") if isinstance(graph, dict) else graph
    if not isinstance(where, str):
        raise ConfigError(f"{path}: the graph {name!r} is {graph!r}, and not path.py:variable")
    return where
