"""What `art-langgraph init` writes beside a `langgraph.json`. Nothing is ever overwritten."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from jinja2 import Environment, PackageLoader, StrictUndefined

from art_langgraph.project.graph import load_graph
from art_langgraph.project.langgraph_json import Place, Project
from art_langgraph.project.models import model_calls, policies_asked
from trainer_server.common import Connection
from trainer_server.wire import ConfigError

DEFAULT = "agent"
"""Name of the policy where the graph names none."""

_VALUES: dict[Any, Any] = {int: 0, float: 0.0, bool: False, list: [], dict: {}}
"""What stands for a field of the graph's input, by its type; for any other type, a text."""


@dataclass(slots=True)
class Scaffold:
    """What was written, and what is left to do.

    Args:
        project: The project.
        graph: Name of the graph.
        place: Where it is defined, as the project's folder sees it.
        policy: Name of the policy.
        url: Address of the trainer server.
        written: Files that were made, or got a line.
        kept: Files that were there.
        models: The lines that make a chat model: file, line, call.
        asks: Whether the graph's files name ChatART.
        problem: Why the graph could not be loaded; None: it could.
    """

    project: Project
    graph: str
    place: str
    policy: str
    url: str
    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    models: list[tuple[str, int, str]] = field(default_factory=list)
    asks: bool = False
    problem: str | None = None


def scaffold(project: Project, name: str | None, policy: str | None) -> Scaffold:
    """Writes `train.py` and `scenarios.jsonl` beside `langgraph.json`, and the server's address into its variables.

    Args:
        project: The project.
        name: Name of the graph; None: the only one.
        policy: Name of the policy. None: the one that the graph's files name, or else DEFAULT.

    Raises:
        ConfigError: As `Project.place`; or the files name several policies.
        OSError: A file cannot be written.
    """
    name, place = project.place(name)
    source = place.source if isinstance(place.source, str) else _relative(project, place.source)
    if policy is None:
        policies = sorted(set().union(*map(policies_asked, _files(place))))
        if len(policies) > 1:
            raise ConfigError(f"the graph's files name several policies, {', '.join(policies)}: choose one by --policy")
        policy = policies[0] if policies else DEFAULT
    summary = Scaffold(project, name, f"{source}:{place.variable}", policy, Connection.find_url())
    templates = Environment(loader=PackageLoader("art_langgraph.project"), undefined=StrictUndefined)
    program = templates.get_template("train.py.jinja").render(graph=name, policy=policy)
    _write(summary, "train.py", lambda: program + "\n")
    _write(summary, "scenarios.jsonl", lambda: _scenarios(summary))
    _add_address(summary)
    summary.asks = any(b"ChatART" in file.read_bytes() for file in _files(place))
    summary.models = [
        (_relative(project, file), line, call) for file in _files(place) for line, call in model_calls(file)
    ]
    return summary


def _write(summary: Scaffold, name: str, text: Callable[[], str]) -> None:
    """Writes a file unless it is there."""
    file = summary.project.folder / name
    if file.exists():
        summary.kept.append(name)
        return
    content = text()
    with file.open("x", encoding="utf-8") as stream:
        stream.write(content)
    summary.written.append(name)


def _add_address(summary: Scaffold) -> None:
    """Adds ART_BASE_URL to the project's file of variables, where it does not have it."""
    if isinstance(summary.project.environment, dict):
        if "ART_BASE_URL" in summary.project.environment:
            summary.kept.append("env in langgraph.json")
        return
    file = summary.project.environment or summary.project.folder / ".env"
    text, name = file.read_text(encoding="utf-8") if file.exists() else "", _relative(summary.project, file)
    if re.search(r"^\s*(export\s+)?ART_BASE_URL\s*=", text, re.M):
        summary.kept.append(name)
        return
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n" * (bool(text) and not text.endswith("\n")) + f"ART_BASE_URL={summary.url}\n")
    summary.written.append(name)


def _scenarios(summary: Scaffold) -> str:
    """Two tasks in the form of the graph's input: texts for a graph of messages, else objects with its fields."""
    fields: dict[str, Any] = {}
    try:
        state = getattr(getattr(load_graph(summary.project.path, summary.graph), "builder", None), "input_schema", None)
        fields = {} if state is None else get_type_hints(state)
    except Exception as error:  # the user's code: it may lack a key here, and the file is only a beginning
        summary.problem = f"{type(error).__name__}: {error}"
    inputs: list[Any] = ["The first task", "The second task"]
    if fields and "messages" not in fields:
        inputs = [{name: _VALUES.get(get_origin(hint) or hint, "…") for name, hint in fields.items()}] * 2
    lines = ({"input": example, "metadata": {"answer": "what a good answer has in it"}} for example in inputs)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _files(place: Place) -> list[Path]:
    """The graph's file, and behind it those beside it."""
    source = place.source
    beside = [] if isinstance(source, str) else source.parent.glob("*.py")
    return sorted(beside, key=lambda file: (file != source, file))


def _relative(project: Project, file: Path) -> str:
    return str(file.relative_to(project.folder)) if file.is_relative_to(project.folder) else str(file)
