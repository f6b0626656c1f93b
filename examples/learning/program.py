"""The command of an example: `python -m art_examples.NAME`."""

from __future__ import annotations

import argparse
import json
import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from art_examples.learning.curve import draw
from art_examples.learning.runs import EMBEDDED, Learner, Options, by_recipe, learn_all, newest, own_server, table
from art_examples.learning.task import TaskMaker
from rich.console import Console

from trainer_server.common import Connection
from trainer_server.common.proxies import exempt_loopback
from trainer_server.wire import ARTError

SHORT_RUNS = Path("runs/examples")
"""Where short runs are written, in a folder for each example, unless `--out` names another one."""


def natural(text: str, least: int = 0) -> int:
    """A whole number of the command line. least: the smallest that is allowed."""
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


positive = partial(natural, least=1)


def duration(text: str) -> float:
    """A number of minutes of the command line."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return minutes


def _server(url: str | None, model: str) -> AbstractContextManager[Connection]:
    """The server that trains.

    Args:
        url: Address of a running one; empty: that which is found. None: one is started.
        model: The base model of one that is started.
    """
    return own_server("--model", model) if url is None else nullcontext(Connection.find(url or None))


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block, so that its server ends too. A shell may have had SIGINT ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(about: str | None, makers: Mapping[str, TaskMaker], folder: Path, words: Sequence[str] | None = None) -> None:
    """Learns tasks by their recipes; see `run_learners`. makers: makers of the tasks, by their names."""
    run_learners(about, {name: by_recipe(maker) for name, maker in makers.items()}, folder, words, recipes=True)


def run_learners(
    about: str | None,
    learners: Mapping[str, Learner],
    folder: Path,
    words: Sequence[str] | None = None,
    *,
    recipes: bool = False,
) -> None:
    """Measures each task before, prompted, after the warm start and after the training, for each seed.

    Each finished run is a line of results.jsonl, of which curve.svg is drawn. Runs of other lengths (`--steps`,
    `--minutes`, `--held-out`, `--demonstrations`) or another base model have files of their own, so that those of the
    example are of its recipe.

    Args:
        about: What `--help` says.
        learners: Learners of the tasks, by their names.
        folder: The folder of the example, which gets results.jsonl and curve.svg of whole runs.
        words: The words of the command line. None: those of the process.
        recipes: Whether the learners follow recipes, whose warm start may have fewer demonstrations.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m art_examples.{folder.name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", action="append", choices=list(learners), help="only this one; may be repeated (all)")
    parser.add_argument("--seeds", type=positive, help="runs of each task, with a seed each (3; with --minutes 1)")
    parser.add_argument("--first-seed", type=natural, default=0, help="the seed of the first of them (0)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive, help="training steps in place of those of the recipe")
    length.add_argument("--minutes", type=duration, help="train for so long, in place of a number of steps")
    parser.add_argument("--held-out", type=positive, help="measure on the first N held-out scenarios only (all)")
    parser.set_defaults(demonstrations=None)
    if recipes:
        parser.add_argument(
            "--demonstrations", type=positive, help="imitate the first N only, which leaves more to RL (all)"
        )
    parser.add_argument(
        "--model",
        default=EMBEDDED,
        help="the base model, as `art-langgraph serve --model` takes it: a name on the Hugging Face hub or a folder "
        "(embedded)",
    )
    parser.add_argument(
        "--against", action="append", default=[], help="also measure this model of litellm; may be repeated"
    )
    parser.add_argument(
        "--judge", help="also train a policy by the scores of this model of litellm (RULER), and compare the two"
    )
    parser.add_argument(
        "--connect",
        nargs="?",
        const="",
        metavar="URL",
        help="use a running server: that at URL, with the key in ART_API_KEY, or the one that `art-langgraph connect` "
        "or ART_BASE_URL names",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help=f"folder of results.jsonl and curve.svg (of short runs {SHORT_RUNS / folder.name}, else {folder})",
    )
    parser.add_argument("--note", default="", help="what readers of results.jsonl should know of these runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    given = parser.parse_args(words)
    if given.connect is not None and given.model != EMBEDDED:
        parser.error("--model is for a server that is started here: with --connect, the server's own model is trained")
    exempt_loopback()
    first, seeds = given.first_seed, given.seeds or (1 if given.minutes else 3)
    sizes = (given.steps, given.minutes, given.held_out, given.demonstrations)
    short = given.model != EMBEDDED or any(size is not None for size in sizes)
    out = given.out or (SHORT_RUNS / folder.name if short else folder)
    results = out / "results.jsonl"
    options = Options(
        steps=given.steps,
        minutes=given.minutes,
        held_out=given.held_out,
        demonstrations=given.demonstrations,
        results=results,
        prompted=True,
        model=given.model if given.connect is None else None,
        models=given.against,
        judge=given.judge,
        note=given.note,
    )
    runs = [(name, seed) for name in given.task or learners for seed in range(first, first + seeds)]
    try:
        with interruptible(), _server(given.connect, given.model) as server:
            rows = learn_all(learners, runs, server, options)
    except ARTError as error:
        raise SystemExit(f"{parser.prog}: {error}") from error
    draw(out / "curve.svg", list(newest(results).values()))
    Console(width=170, stderr=given.json).print(table(rows))
    if given.json:
        print(json.dumps({"example": folder.name, "runs": rows}))
