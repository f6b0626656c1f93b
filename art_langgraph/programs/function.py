"""Functions that a rollout calls: agents, and factories of graphs. Where possible, they are distinguished without a
call."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
import typing
from collections.abc import Callable
from typing import Any, Literal

from langchain_core.runnables import Runnable

from art_langgraph.programs.run import Run
from art_langgraph.trajectory import Scenario
from trainer_server.wire import ConfigError

ResultKind = Literal["graph", "output", "either"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_POSITION = (*_POSITIONAL, inspect.Parameter.VAR_POSITIONAL)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_GRAPH_WORDS = ("Runnable", "Compiled", "Pregel", "Graph", "ContextManager")


class Function:
    """A function that a rollout calls.

    Attributes:
        makes: `graph` for a factory that says so by its return annotation or by @asynccontextmanager, and for a class;
            `output` for an agent that says so, or that is async; `either` where only a call shows it: its result
            decides.
        name: Its name, for messages.

    Args:
        function: Any callable: sync or async.

    Raises:
        ConfigError: It cannot be called with a scenario, or it is a generator.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function: Any = function
        self.name = name_of(function)
        inner = _innermost(function)
        if inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
            raise ConfigError(
                f"{self.name} is a generator: decorate it with @contextlib.asynccontextmanager and yield a graph, or "
                "return a result"
            )
        self._sync = not inspect.iscoroutinefunction(inner)
        annotation = _return_annotation(inner)
        yields = inspect.isasyncgenfunction(inspect.unwrap(inner))  # under @asynccontextmanager
        if inspect.isclass(inner) or yields or names_graph(annotation):
            self.result_kind: ResultKind = "graph"
        else:
            self.result_kind = "output" if not self._sync or says_no_graph(annotation) else "either"
        try:
            self._parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            raise ConfigError(f"{self.name} cannot be called with a scenario: its parameters are unknown") from None
        self._check_parameters()

    async def call(self, scenario: Scenario, run: Run) -> Any:
        """Calls the function, and awaits what it returns. A sync function is called in a thread of its own, with this
        context; a factory of graphs is called here."""
        positional, keywords = self._arguments(scenario, run)
        call = functools.partial(self._function, *positional, **keywords)
        result = await in_thread(call) if self._sync and self.result_kind != "graph" else call()
        return await result if inspect.isawaitable(result) else result

    def _check_parameters(self) -> None:
        expectation = (
            "a graph factory takes the scenario or nothing, and returns a compiled graph"
            if self.result_kind == "graph"
            else "a function takes the scenario's input and the run, or the first of them, or nothing"
        )
        required_parameters = [
            parameter
            for parameter in self._parameters
            if parameter.default is parameter.empty and parameter.kind not in _VARIABLE
        ]
        most = 1 if self.result_kind == "graph" else 2
        strangers = [
            parameter
            for parameter in required_parameters
            if parameter.kind not in _POSITIONAL and _meaning(parameter) is None
        ]
        if len(required_parameters) > most or strangers:
            raise ConfigError(
                f"{self.name} needs {', '.join(parameter.name for parameter in required_parameters)}: {expectation}"
            )

    def _arguments(self, scenario: Scenario, run: Run) -> tuple[list[Any], dict[str, Any]]:
        """What it is called with.

        A parameter that is named `scenario` or `run`, or annotated so, gets that. Of the others that have no default,
        the first gets the scenario's input, and the second the run. A factory's first parameter gets the scenario.
        """
        values: dict[str, Any] = {"scenario": scenario, "run": run}
        rest: list[Any] = [scenario] if self.result_kind == "graph" else [scenario.input, run]
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        by_name = False
        for parameter in self._parameters:
            meaning = _meaning(parameter)
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                if not positional and not by_name:
                    positional.append(scenario)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD or (
                meaning is None and parameter.default is not parameter.empty
            ):
                by_name = True  # a parameter that is left out: those behind it are passed by their names
            else:
                value = values[meaning] if meaning else rest.pop(0)
                if meaning == "scenario" and rest and rest[0] is not run:
                    rest.pop(0)
                if parameter.kind is inspect.Parameter.POSITIONAL_ONLY or (
                    parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and not by_name
                ):
                    positional.append(value)
                else:
                    keywords[parameter.name] = value
        return positional, keywords


async def in_thread(call: Callable[[], Any]) -> Any:
    """Calls a function in a new thread, with a copy of this context.

    Each call has a thread of its own, so that runs never wait for the few threads of the event loop. A thread cannot be
    cancelled: it goes on alone when the caller is.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    result: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if result.done():  # the caller was cancelled
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(call)
        except Exception as raised:
            error = RuntimeError(f"StopIteration: {raised}") if isinstance(raised, StopIteration) else raised
        except BaseException as raised:  # sys.exit() in a program ends its run, not this process
            error = RuntimeError(f"{type(raised).__name__}: {raised}")
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:  # the loop has ended: nobody waits
            pass

    threading.Thread(target=work, name="art-run", daemon=True).start()
    return await result


def name_of(function: Any) -> str:
    """What to call a function, or the class of a callable object, in a message."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__).rpartition("<locals>.")[2]


def names_graph(annotation: Any) -> bool:
    """Whether an annotation names a graph, compiled or not, or a context manager."""
    if isinstance(annotation, str):
        return any(word in annotation for word in _GRAPH_WORDS)
    kind = typing.get_origin(annotation) or annotation
    if isinstance(kind, type):
        return issubclass(kind, Runnable) or hasattr(kind, "__aenter__") or hasattr(kind, "compile")
    return any(map(names_graph, typing.get_args(annotation)))


def says_no_graph(annotation: Any) -> bool:
    """Whether an annotation names something else than a graph. None, Any and object say nothing."""
    if annotation in (None, typing.Any, object, "Any", "object"):
        return False
    return not names_graph(annotation)


def _meaning(parameter: inspect.Parameter) -> str | None:
    """Whether a parameter says that it is the scenario or the run."""
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    words = text.replace("|", " ").replace("[", " ").replace("]", " ").replace(".", " ").replace(",", " ").split()
    if parameter.kind in _VARIABLE:
        return None
    if parameter.name == "scenario" or "Scenario" in words:
        return "scenario"
    return "run" if parameter.name == "run" or "Run" in words else None


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


def _return_annotation(function: Any) -> Any:
    """The return annotation of a function: a type, or its text where it cannot be resolved; None where it has none.

    `-> None` is NoneType.
    """
    try:
        return typing.get_type_hints(function).get("return")
    except Exception:  # annotations are the user's code: names that exist for type checkers only
        return getattr(function, "__annotations__", {}).get("return")
