"""Inputs for a graph that a language model writes: varied, valid by the graph's schema, without duplicates."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema
from langchain_core.runnables import Runnable
from pydantic import BaseModel, Field
from pydantic.errors import PydanticUserError
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from art_langgraph.auto_rl.duplicates import DistinctTexts
from art_langgraph.llm.llm import LLM
from art_langgraph.loop.rollout import Graph, run_all
from art_langgraph.messages import normalised_input, plain
from art_langgraph.progress import progress_bar
from art_langgraph.trajectory import Scenario
from trainer_server.wire import ConfigError

_BATCH = 8
"""Inputs that a request asks for. With more of them, models repeat themselves."""
_MOST_EXAMPLES = 30
"""Known inputs that a request shows to the model, so that it writes others."""
_LEVELS = ("very easy", "easy", "of middling difficulty", "hard", "very hard")

_SYSTEM = """\
You write inputs on which an agent is trained and measured. What the agent is for:

{task}

Write {count} inputs as the agent's users would send them: realistic, whole in themselves, each about something else,
{level} for the agent. Vary topics, wording and length. Write only inputs, never their solutions.{more}"""


class Texts(BaseModel):
    """Messages of users."""

    inputs: list[str] = Field(min_length=1)


class Objects(BaseModel):
    """Inputs of a graph's own schema."""

    inputs: list[dict[str, Any]] = Field(min_length=1)


@dataclass(slots=True)
class GeneratedScenarios:
    """Scenarios that a model wrote."""

    scenarios: list[Scenario] = field(default_factory=list)
    """The scenarios; at most as many as were asked for."""
    repeat_count: int = 0
    """How many inputs were left out because they resemble another input."""
    rounds: int = 0
    """How often the model was asked for the missing inputs."""


async def invent(
    task: str,
    n: int,
    llm: LLM,
    *,
    schema: dict[str, Any] | None = None,
    examples: Sequence[Scenario] = (),
    instructions: str | None = None,
    seed: int = 0,
    rounds: int = 4,
    progress: bool = True,
) -> GeneratedScenarios:
    """Lets a model write up to `n` inputs for an agent; fewer when the model repeats itself too often.

    Args:
        task: What the agent is for.
        n: How many inputs.
        llm: The model that writes them.
        schema: JSON schema of an input; None: messages of a user.
        examples: Scenarios to write more of. None of them is repeated.
        instructions: Further instructions to the model.
        seed: Seeds which known inputs each request shows.
        rounds: How often the model is asked for missing inputs, at most.
        progress: Shows a bar on the terminal.

    Raises:
        LLMError: The model gave no usable answer.
    """
    result, distinct = GeneratedScenarios(), DistinctTexts(_text(scenario.input) for scenario in examples)
    rng = random.Random(f"inputs-{seed}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with progress_bar(*columns, shown=progress) as bar:
        task_bar = bar.add_task("inputs", total=n)
        while len(result.scenarios) < n and result.rounds < rounds:
            texts = [_text(scenario.input) for scenario in (*examples, *result.scenarios)]
            calls = []
            for at in range(-(-(n - len(result.scenarios)) // _BATCH)):
                prompt = _prompt(task, _LEVELS[(at + result.rounds) % len(_LEVELS)], schema, instructions)
                others = rng.sample(texts, min(_MOST_EXAMPLES, len(texts)))
                calls.append(_request_inputs(llm, prompt, others, schema, sample=rng.randrange(2**32)))
            for answer in await run_all(calls):
                for value in answer:
                    if not distinct.add(_text(value)):
                        result.repeat_count += 1
                    elif len(result.scenarios) < n:
                        result.scenarios.append(Scenario.of(value) if schema is None else Scenario(input=value))
            result.rounds += 1
            bar.update(task_bar, completed=len(result.scenarios))
    return result


def input_schema(graph: Graph) -> dict[str, Any] | None:
    """The JSON schema of a graph's input.

    Args:
        graph: A compiled graph, or a factory.

    Returns:
        The schema; None for a graph that takes messages, and for a factory.

    Raises:
        ConfigError: The graph does not tell what it takes.
    """
    if not isinstance(graph, Runnable):
        return None  # a factory is called only inside a rollout
    try:
        schema: dict[str, Any] = graph.get_input_jsonschema()
    except (PydanticUserError, TypeError, ValueError) as error:
        raise ConfigError(f"the graph does not tell what it takes ({error}): pass schema=…") from None
    return None if "messages" in schema.get("properties", {}) else schema


async def _request_inputs(
    llm: LLM, prompt: str, others: Sequence[str], schema: dict[str, Any] | None, sample: int
) -> Sequence[str | dict[str, Any]]:
    user = "Write them." if not others else "Write others than these:\n" + "\n".join(f"- {text}" for text in others)
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": user}]
    if schema is None:
        return (await llm.ask(messages, Texts, check=_not_empty, sample=sample)).inputs

    def fits(answer: Objects) -> None:
        for at, value in enumerate(answer.inputs):
            try:
                jsonschema.validate(value, schema)
            except jsonschema.ValidationError as error:
                raise ValueError(f"input {at} does not fit the schema: {error.message}") from None

    return (await llm.ask(messages, Objects, check=fits, sample=sample)).inputs


def _not_empty(answer: Texts) -> None:
    if not all(text.strip() for text in answer.inputs):
        raise ValueError("an input is empty")


def _prompt(task: str, level: str, schema: dict[str, Any] | None, instructions: str | None) -> str:
    more = "" if schema is None else f"\n\nEach input is a JSON object of this schema:\n{json.dumps(schema)}"
    more += f"\n\n{instructions}" if instructions else ""
    return _SYSTEM.format(task=task, count=_BATCH, level=level, more=more)


def _text(value: Any) -> str:
    """An input as text: the user's message, or JSON."""
    value = normalised_input(value)
    return value if isinstance(value, str) else json.dumps(plain(value), sort_keys=True, ensure_ascii=False)
