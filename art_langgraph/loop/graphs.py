"""Accepts graphs, functions and factories of graphs, and makes what a run runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import Runnable
from pydantic.errors import PydanticUserError

from art_langgraph.capture.remote.calls import is_remote
from art_langgraph.programs.function import Function
from art_langgraph.programs.run import Run
from art_langgraph.trajectory import Scenario
from trainer_server.common import Connection
from trainer_server.wire import ConfigError

Graph = Runnable[Any, Any] | Callable[..., Any]
"""What a rollout runs: a compiled graph, a function that is the agent, or a factory that makes a graph for a scenario.

What a function returns decides: a compiled graph, or an async context manager that yields one (`@asynccontextmanager`,
left when the run has ended), is run; anything else is the output of the run. A function that says by its return
annotation that it makes a graph (`-> Runnable`) is a factory before it is called: then its errors are no runs, and it
is called in the event loop. A function whose annotation says otherwise, or an `async def` without one, is an agent. A
sync agent runs in a thread of its own.

A parameter that is named `scenario`, or annotated so, gets the scenario; one that is named `run` gets the `Run`. Of the
other parameters without a default, the first gets the scenario's input, and the second the run. The only parameter of a
declared factory gets the scenario.
"""


class NotStarted(ConfigError):
    """There is no graph to run. Nothing was run, and each further run would fail in the same way."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a function returned that was the run itself."""

    value: Any


class GraphSource:
    """Gives each run its graph, or calls its function. Refuses anything else before a run starts.

    All runs wait for the first call of a declared factory. When that call raises, nothing is run. When a later call
    raises, only its run fails.

    Args:
        graph: A compiled graph, a function or a factory.
        proven: Whether a graph came of the function before, in another process.

    Raises:
        ConfigError: It is none of them.
    """

    def __init__(self, graph: Graph, *, proven: bool = False) -> None:
        self.graph = graph
        self.kind = ""
        """Class of the graphs that it gave, or `function`; empty until it gave one."""
        self.server: Connection | None = None
        """The trainer server that functions ask; None: the one that clients find."""
        self.policy: str | None = None
        """The policy that is trained, if one is."""
        self.function = None if isinstance(graph, Runnable) else _function(graph)
        self._first = asyncio.Lock()
        self.proven = proven
        """Whether a graph came of the function."""

    @classmethod
    def of(cls, graph: Graph | GraphSource) -> GraphSource:
        """A source for a graph or a function; a source is returned as it is."""
        return graph if isinstance(graph, GraphSource) else cls(graph)

    @property
    def may_answer(self) -> bool:
        """Whether a call of the function may be the run itself."""
        return self.function is not None and self.function.result_kind != "graph" and not self.proven

    @property
    def answers(self) -> bool:
        """Whether the function says that it is the agent."""
        return self.function is not None and self.function.result_kind == "output"

    @property
    def name(self) -> str:
        """Name of the function; empty for a graph."""
        return self.function.name if self.function is not None else ""

    def check(self, scenarios: Iterable[Scenario]) -> None:
        """Raises ConfigError when a compiled graph cannot take the input of a scenario."""
        if isinstance(self.graph, Runnable):
            for scenario in scenarios:
                graph_input(self.graph, scenario.input)

    async def open(
        self, scenario: Scenario, run: Run, stack: AsyncExitStack, timeout: float | None
    ) -> Runnable[Any, Any] | Output:
        """The graph of a run, or the output of the function that was the run.

        Args:
            scenario: The scenario of the run.
            run: The run.
            stack: Gets the factory's context manager, if any. The caller closes the stack after the run.
            timeout: Seconds for a function that may be the run itself.

        Raises:
            NotStarted: A declared factory raised in the first run; or what came back is no compiled graph, and should
                have been.
        """
        if isinstance(self.graph, Runnable):
            runnable: Runnable[Any, Any] | Output = self.graph
        elif self.function is not None and self.function.result_kind == "graph":
            runnable = await self._call_factory(self.function, scenario, run, stack)
        else:
            assert self.function is not None
            runnable = await self._call_function(self.function, scenario, run, stack, timeout)
        self.kind = "function" if isinstance(runnable, Output) else type(runnable).__name__
        return runnable

    async def _call_function(
        self, function: Function, scenario: Scenario, run: Run, stack: AsyncExitStack, timeout: float | None
    ) -> Runnable[Any, Any] | Output:
        """Calls a function of which only the result tells whether it is the agent."""
        try:
            async with time_limit(timeout):
                result = await function.call(scenario, run)
        except NotStarted as error:  # of a rollout inside the function
            raise ConfigError(str(error)) from error
        like_a_graph = function.result_kind == "either" and (
            hasattr(result, "compile") or hasattr(result, "__aenter__")
        )
        if not isinstance(result, Runnable) and not like_a_graph:
            return Output(result)
        graph = await _graph_of(function, result, stack, ConfigError if self.proven else NotStarted)
        self.proven = True
        return graph

    async def _call_factory(
        self, function: Function, scenario: Scenario, run: Run, stack: AsyncExitStack
    ) -> Runnable[Any, Any]:
        """Calls a declared factory. What fails after its first graph fails one run alone."""
        async with nullcontext() if self.proven else self._first:
            if not self.proven:
                try:
                    graph = await _graph_of(function, await function.call(scenario, run), stack, NotStarted)
                except NotStarted:
                    raise
                except Exception as error:  # the user's code failed before any run: the error goes to the caller
                    raise NotStarted(
                        f"the graph factory {function.name} raised: {type(error).__name__}: {error}"
                    ) from error
                self.proven = True
                return graph
        try:
            return await _graph_of(function, await function.call(scenario, run), stack, ConfigError)
        except NotStarted as error:  # of a rollout inside the factory
            raise ConfigError(str(error)) from error


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[None]:
    """Ends a run after a time. seconds: None is no limit. Raises TimeoutError, which names the limit."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():  # one of the run itself
            raise
        raise TimeoutError(
            f"the run took longer than timeout={seconds:g} s: raise timeout=, or make fewer runs at once "
            "(max_concurrency=)"
        ) from error


async def _graph_of(
    function: Function, result: Any, stack: AsyncExitStack, error_type: type[ConfigError]
) -> Runnable[Any, Any]:
    """The graph that a factory gave. Raises `error_type` for something else than a graph."""
    if hasattr(result, "__aenter__") and not isinstance(result, Runnable):
        result = await stack.enter_async_context(result)
    if not isinstance(result, Runnable):
        remedy = "; return graph.compile()" if hasattr(result, "compile") else ""
        raise error_type(f"the graph factory {function.name} gave {_article(result)}, not a compiled graph{remedy}")
    return result


def graph_input(graph: Runnable[Any, Any], value: Any) -> Any:
    """The input to invoke a graph with: a text becomes a user's message, unless the graph takes a plain text.

    Args:
        graph: The compiled graph.
        value: The input of a scenario.

    Raises:
        ConfigError: It is a text, and the graph's input has other fields than `messages`.
    """
    if not isinstance(value, str):
        return value
    schema = _input_schema(graph)
    fields = schema.get("properties")
    if fields is None:
        kinds = [schema, *schema.get("anyOf", ())]
        return value if any(kind.get("type") == "string" for kind in kinds) else _message(value)
    if "messages" in fields:
        return _message(value)
    names = ", ".join(map(repr, fields)) or "no fields"
    raise ConfigError(
        f"the graph's input has {names} and no 'messages', so that the text {value[:40]!r} cannot be its input: "
        "pass an object, Scenario(input={…})"
    )


def _message(text: str) -> dict[str, Any]:
    return {"messages": [("user", text)]}


def _input_schema(graph: Runnable[Any, Any]) -> Mapping[str, Any]:
    """JSON schema of a graph's input; empty where it is unknown."""
    while (bound := getattr(graph, "bound", None)) is not None:  # with_config, with_retry
        graph = bound
    if is_remote(graph):
        return {}
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


def _function(graph: Any) -> Function:
    """A function that may be run. Raises ConfigError for another object. Does not call it."""
    if hasattr(graph, "compile"):
        raise ConfigError(f"{_article(graph)} has to be compiled before it can run: call .compile() on it")
    if not callable(graph):
        raise ConfigError(f"{_article(graph)} cannot be run: pass a compiled graph, or a function")
    return Function(graph)


def _article(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"
