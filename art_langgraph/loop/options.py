"""Options are fields of dataclasses, from which keywords, flags, tables of the docs and records of runs derive.

A field has its type and its default; the section `Args` of the class has its meaning. `metadata` of a field is what
`typer.Option` gets besides: `{"min": 1}`. Its `flag` is the name on the command line, where that is not the field's.
Nothing heavy is imported here: the command line reads this for its `--help`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from trainer_server.common.options import help_of, nearest

Keywords = ParamSpec("Keywords")
Options = TypeVar("Options")
Result = TypeVar("Result")

ExecutorName = Literal["local", "processes", "ray"]


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """How much a training does: keywords of `train` and `autorl`, flags of their commands.

    Args:
        steps: Steps of the loop: the number of the last one.
        groups_per_step: Scenarios of a step.
        n: Runs of each scenario in a step, which are compared with each other.
    """

    steps: int = field(metadata={"min": 1})
    groups_per_step: int = field(default=4, metadata={"min": 1})
    n: int = field(default=8, metadata={"min": 2})


@dataclass(frozen=True, kw_only=True)
class LoopOptions(SizeOptions):
    """Options of the training loop that are plain values: keywords of `train`, flags of `art-langgraph train`, and what
    the trackers of a run get of its settings.

    Args:
        evaluate_every: Steps between two further evaluations on the held-out scenarios. None: there are no others than
            before the first and after the last step.
        keep_best: The version with the highest held-out success is promoted at the end: the policy's name means it.
            `StepRecord.best` of the last step has it. It is never deleted. Versions that were the best before, or are
            promoted, are measured too.
        run: Name of the training run, with which the same call or command continues it: a step that the server accepted
            before a crash is not taken again, and its record has no groups. A step that failed there, or was cancelled,
            is taken again. Empty: it has none.
        max_concurrency: Runs at once: those of training, of evaluations and with hints together. None: as many requests
            as the server's engines compute at once, or 32 where they do not say.
        tune: The first steps try how many runs at once make groups fastest: half as many as `max_concurrency`, or twice
            as many where groups wait for slots, never more than the engines compute at once nor than `max_concurrency`
            if it is given. The best is taken for the rest of the run, kept in `store` by `run`, and reported
            (`StepRecord.tuning`). What steps learn from is not changed.
    """

    evaluate_every: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "Steps between two further evaluations on the held-out scenarios. Default: none but before the "
            "first and after the last step.",
        },
    )
    keep_best: bool = field(
        default=False,
        metadata={
            "help": "Promote the version with the highest held-out success at the end: the policy's name means it. It "
            "is never deleted. Versions that were the best before, or are promoted, are measured too."
        },
    )
    run: str = field(
        default="",
        metadata={
            "help": "Name of the training run. The same command continues it: a step that the server accepted before a "
            "crash is not taken again; one that failed there, or was cancelled, is."
        },
    )
    max_concurrency: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "Runs at once, all together. Default: as many requests as the server's engines compute at once, or "
            "32 where they do not say.",
        },
    )
    tune: bool = field(
        default=False,
        metadata={
            "help": "The first steps try how many runs at once make groups fastest, up to --max-concurrency. The rest "
            "of the run, and one that continues it by --run, takes the best. What steps learn from is not changed."
        },
    )


def keywords_of(
    options: Callable[Keywords, Options],
) -> Callable[[Callable[[Options], Result]], Callable[Keywords, Result]]:
    """Decorator: a function that takes options is called with their fields as arguments, which type checkers check.

    Args:
        options: The dataclass of the options.
    """
    signature = inspect.signature(options)

    def decorate(function: Callable[[Options], Result]) -> Callable[Keywords, Result]:
        name = function.__name__

        @wraps(function)
        def call(*args: Keywords.args, **kwargs: Keywords.kwargs) -> Result:
            for word in kwargs.keys() - signature.parameters.keys():
                near = nearest(word, signature.parameters)
                raise TypeError(f"{name}() got an unexpected keyword argument {word!r}{near}")
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{name}(): {error}") from None
            return function(options(*args, **kwargs))

        returns = inspect.signature(function).return_annotation
        call.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
        meanings = "".join(f"\n    {field}: {text}" for field, text in help_of(options).items())
        call.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:{meanings}\n"
        return call

    return decorate


def values_of(options: object, declaration: Any) -> dict[str, Any]:
    """The values that some options have for the fields of a dataclass, by name.

    Args:
        options: Has at least these fields.
        declaration: The dataclass, a base of theirs, say.
    """
    return {option.name: getattr(options, option.name) for option in fields(declaration)}


def markdown_table(options: Any) -> str:
    """The fields of a dataclass as a table of the docs, those without a default first.

    Args:
        options: The dataclass.
    """
    by_name = {option.name: option for option in fields(options)}
    defaults = {name: _default(option) for name, option in by_name.items()}
    rows = []
    for name, meaning in sorted(help_of(options).items(), key=lambda item: defaults[item[0]] != "required"):
        form = str(by_name[name].type).replace(" | ", " or ")
        rows.append(f"| `{name}` | `{form}` | {defaults[name]} | {meaning} |")
    return "\n".join(["| keyword | type | default | meaning |", "|---|---|---|---|", *rows])


def _default(option: Field[Any]) -> str:
    """The default of a field, as a table of the docs has it."""
    if option.default is not MISSING:
        return f"`{getattr(option.default, '__name__', repr(option.default))}`"
    factory: Any = option.default_factory
    return "required" if factory is MISSING else f"`{factory.__name__}()`"
