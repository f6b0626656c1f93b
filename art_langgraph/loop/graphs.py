"""Accepts graphs and factories of graphs, and makes the compiled graph and the input of each run."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable
from pydantic.errors import PydanticUserError

from art_langgraph.trajectory import Scenario
from trainer_server.wire import ConfigError

Graph = Runnable[Any, Any] | Callable[..., Any]
"""A compiled graph, or a factory: a function that makes a graph for a scenario.

A factory takes the scenario or nothing: a parameter with a default gets the scenario only if it is named `scenario` or
annotated so. It returns a compiled graph, or an async context manager that yields one and is
left when the run has ended (`@asynccontextmanager`). An `async def` that returns the graph says so by its annotation,
`-> Runnable`: without it, it looks like an agent, and it is refused before it is called.
"""

_NO_GRAPHS = (str, bytes, int, float, dict, list, tuple, set, type(None), BaseMessage)
"""What agents return and factories do not."""
_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class NotStarted(ConfigError):
    """There is no graph to run. Nothing was run, and each further run would fail in the same way."""


class GraphSource:
    """Makes the graph of each run. Refuses anything else than a graph or a factory before a run starts.

    All runs wait for the first call of a factory. When that call raises, nothing is run. When a later call raises, only
    its run fails.

    Args:
        graph: A compiled graph or a factory.

    Raises:
        ConfigError: It is no compiled graph and no factory.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.kind = ""
        """Class of the graphs that it gave; empty until it gave one."""
        self._first = asyncio.Lock()
        self._proven = isinstance(graph, Runnable)
        if not isinstance(graph, Runnable):
            _check_factory(graph)

    @classmethod
    def of(cls, graph: Graph | GraphSource) -> GraphSource:
        """A source for a graph or a factory; a source is returned as it is."""
        return graph if isinstance(graph, GraphSource) else cls(graph)

    def check(self, scenarios: Iterable[Scenario]) -> None:
        """Raises ConfigError when a compiled graph cannot take the input of a scenario."""
        if isinstance(self.graph, Runnable):
            for scenario in scenarios:
                graph_input(self.graph, scenario.input)

    async def open(self, scenario: Scenario, stack: AsyncExitStack) -> Runnable[Any, Any]:
        """The graph of a run.

        Args:
            scenario: The scenario of the run.
            stack: Gets the factory's context manager, if any. The caller closes the stack after the run.

        Raises:
            NotStarted: The factory raised in the first run, or returned something else than a compiled graph.
        """
        opened = self.graph if isinstance(self.graph, Runnable) else await self._made(scenario, stack)
        self.kind = type(opened).__name__
        return opened

    async def _made(self, scenario: Scenario, stack: AsyncExitStack) -> Runnable[Any, Any]:
        if self._proven:
            return await self._make_later(scenario, stack)
        async with self._first:
            if self._proven:
                return await self._make_later(scenario, stack)
            try:
                made = await self._make(scenario, stack, NotStarted)
            except NotStarted:
                raise
            except Exception as error:  # the user's code failed before any run: the error goes to the caller
                name = _name(self.graph)
                raise NotStarted(f"the graph factory {name} raised: {type(error).__name__}: {error}") from error
            self._proven = True
            return made

    async def _make_later(self, scenario: Scenario, stack: AsyncExitStack) -> Runnable[Any, Any]:
        """A graph after the first one; what fails now fails its run alone."""
        try:
            return await self._make(scenario, stack, ConfigError)
        except NotStarted as error:  # of a rollout inside the factory
            raise ConfigError(str(error)) from error

    async def _make(self, scenario: Scenario, stack: AsyncExitStack, refused: type[ConfigError]) -> Runnable[Any, Any]:
        """Calls the factory. Raises what it raises, and `refused` when it gives something else than a graph."""
        factory: Any = self.graph
        made = factory(scenario) if _takes_scenario(factory) else factory()
        if inspect.isawaitable(made):
            made = await made
        if hasattr(made, "__aenter__"):
            made = await stack.enter_async_context(made)
        if not isinstance(made, Runnable):
            remedy = "; return graph.compile()" if hasattr(made, "compile") else ""
            raise refused(f"the graph factory {_name(factory)} gave {_article(made)}, not a compiled graph{remedy}")
        return made


def graph_input(graph: Runnable[Any, Any], given: Any) -> Any:
    """The input to invoke a graph with: a text becomes a user's message, unless the graph takes a plain text.

    Args:
        graph: The compiled graph.
        given: The input of a scenario.

    Raises:
        ConfigError: It is a text, and the graph's input has other fields than `messages`.
    """
    if not isinstance(given, str):
        return given
    schema = _input_schema(graph)
    fields = schema.get("properties")
    if fields is None:
        kinds = [schema, *schema.get("anyOf", ())]
        return given if any(kind.get("type") == "string" for kind in kinds) else _message(given)
    if "messages" in fields:
        return _message(given)
    names = ", ".join(map(repr, fields)) or "no fields"
    raise ConfigError(
        f"the graph's input has {names} and no 'messages', so that the text {given[:40]!r} cannot be its input: "
        "pass an object, Scenario(input={…})"
    )


def _message(text: str) -> dict[str, Any]:
    return {"messages": [("user", text)]}


def _input_schema(graph: Runnable[Any, Any]) -> Mapping[str, Any]:
    """JSON schema of a graph's input; empty where it is unknown."""
    while (bound := getattr(graph, "bound", None)) is not None:  # with_config, with_retry
        graph = bound
    builder = getattr(graph, "builder", None)
    schemas, state = getattr(builder, "schemas", None), getattr(builder, "input_schema", None)
    if schemas and state in schemas:  # a StateGraph: its channels, without the cost of a schema
        fields = schemas[state]
        return {} if "__root__" in fields else {"properties": fields}
    try:
        schema = graph.get_input_jsonschema()
    except (PydanticUserError, TypeError, ValueError, NotImplementedError, AttributeError):
        return {}
    if (ref := schema.get("$ref")) is not None:
        schema = schema.get("$defs", {}).get(ref.rpartition("/")[2], {})
    return schema


def _check_factory(graph: Any) -> None:
    """Raises ConfigError for an object that is no graph and, by its signature, no factory. Does not call it."""
    name = _name(graph)
    if hasattr(graph, "compile"):
        raise ConfigError(f"{_article(graph)} has to be compiled before it can run: call .compile() on it")
    if not callable(graph):
        raise ConfigError(f"{_article(graph)} is no graph: pass a compiled graph, or a function that makes one")
    wanted = "a graph factory takes the scenario or nothing, and returns a compiled graph"
    try:
        parameters = inspect.signature(graph).parameters.values()
    except (TypeError, ValueError):
        raise ConfigError(f"{name} cannot be called with a scenario: {wanted}") from None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    needed = [parameter for parameter in required if parameter.kind not in _VARIABLE]
    if len(needed) > 1 or any(parameter.kind not in positional for parameter in needed):
        raise ConfigError(f"{name} needs {', '.join(parameter.name for parameter in needed)}: {wanted}")
    function = _function(graph)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(
            f"{name} is a generator: decorate it with @contextlib.asynccontextmanager, and yield the graph"
        )
    returned = _returned(function)
    if isinstance(returned, type) and issubclass(returned, _NO_GRAPHS):
        raise ConfigError(f"{name} returns {returned.__name__}, which is no graph: {wanted}")
    if inspect.iscoroutinefunction(function) and not _makes_graph(returned):
        raise ConfigError(
            f"{name} is an async function that does not say that it makes a graph, so it was not called. If it makes "
            "one, annotate it: `-> Runnable`. If it is the agent itself, make it the node of a graph"
        )


def _takes_scenario(factory: Any) -> bool:
    """Whether a factory is called with the scenario.

    A parameter with a default is the scenario only if it says so, by its name or its annotation:
    `def make(model=MODEL)` has another one.
    """
    found = [one for one in inspect.signature(factory).parameters.values() if one.kind in _BY_POSITION]
    if not found:
        return False
    first = found[0]
    if first.default is first.empty:
        return True
    annotation = first.annotation if isinstance(first.annotation, str) else getattr(first.annotation, "__name__", "")
    return first.name == "scenario" or "Scenario" in annotation


def _function(graph: Any) -> Any:
    while isinstance(graph, functools.partial):
        graph = graph.func
    if inspect.isroutine(graph) or inspect.isclass(graph):
        return graph
    return type(graph).__call__


def _returned(function: Any) -> Any:
    """The return annotation of a function: a type, or its text where it cannot be resolved."""
    try:
        return typing.get_type_hints(function).get("return")
    except Exception:  # annotations are the user's code: names that exist for type checkers only
        return getattr(function, "__annotations__", {}).get("return")


def _makes_graph(returned: Any) -> bool:
    """Whether an annotation names a graph, compiled or not, or a context manager."""
    if isinstance(returned, str):
        return any(word in returned for word in ("Runnable", "Compiled", "Pregel", "Graph", "ContextManager"))
    kind = typing.get_origin(returned) or returned
    if isinstance(kind, type):
        return issubclass(kind, Runnable) or hasattr(kind, "__aenter__") or hasattr(kind, "compile")
    return any(map(_makes_graph, typing.get_args(returned)))


def _name(graph: Any) -> str:
    while isinstance(graph, functools.partial):
        graph = graph.func
    return str(getattr(graph, "__qualname__", None) or type(graph).__qualname__).rpartition("<locals>.")[2]


def _article(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"
