"""The frameworks that are tested, and what the small engine answers to each."""

from __future__ import annotations

import json
from dataclasses import dataclass

QUESTION = "Which city has more people, Oslo or Rome?"
ANSWER = "Rome"


def call(tool: str, **arguments: str) -> str:
    """A tool call, as the small engine writes it."""
    return f"call {tool} {json.dumps(arguments)}"


def fields(**values: str) -> str:
    """An answer in the format of DSPy, which has tool calls as text."""
    return "\n\n".join([*(f"[[ ## {name} ## ]]\n{value}" for name, value in values.items()), "[[ ## completed ## ]]"])


OSLO, ROME = call("population", city="Oslo"), call("population", city="Rome")


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework, and how its agent speaks to a model.

    Attributes:
        name: As the table of docs/capture/frameworks/index.md has it.
        script: Name of its file in tests/frameworks/agents.
        package: The package whose version the table has.
        environment: A key of `environments.PACKAGES`.
        api: Path of its requests, after `/v1`.
        streams: Whether it asks for streams.
        answers: What the model says, one answer for each of its calls.
        called: Tools that the completions call, in order. Empty where the framework has tool calls as text.
        result: How a tool message has the result, for `%`.
        returned: Whether results come back as tool messages. Otherwise the framework writes them into its prompts.
        grammar: Whether it asks for strict tools or forces a tool call, so that a grammar constrains the answers.
        sends: Parameters of its requests besides the model, the conversation, the tools and `stream`.
    """

    name: str
    script: str
    package: str
    environment: str
    api: str = "/chat/completions"
    streams: bool = False
    answers: tuple[str, ...] = (OSLO, ROME, f"{ANSWER} has more people.")
    called: tuple[str, ...] = ("population", "population")
    result: str = "%s"
    returned: bool = True
    grammar: bool = False
    sends: tuple[str, ...] = ()


FRAMEWORKS = (
    Framework("openai", "plain_openai", "openai", "openai-3"),
    Framework(
        "anthropic",
        "plain_anthropic",
        "anthropic",
        "openai-3",
        api="/messages",
        streams=True,
        sends=("max_tokens", "system"),
    ),
    Framework(
        "OpenAI Agents SDK",
        "openai_agents_sdk",
        "openai-agents",
        "openai-3",
        api="/responses",
        grammar=True,
        sends=("include", "instructions"),
    ),
    Framework(
        "Pydantic AI",
        "pydantic_ai_agent",
        "pydantic-ai-slim",
        "openai-3",
        api="/responses",
        grammar=True,
        sends=("instructions", "tool_choice"),
    ),
    Framework(
        "LlamaIndex",
        "llama_index_agent",
        "llama-index-core",
        "openai-2",
        streams=True,
        sends=("parallel_tool_calls", "temperature", "tool_choice"),
    ),
    Framework(
        "smolagents",
        "smolagents_agent",
        "smolagents",
        "openai-3",
        answers=(OSLO, ROME, call("final_answer", answer=ANSWER)),
        called=("population", "population", "final_answer"),
        returned=False,
        grammar=True,
        sends=("max_tokens", "stop", "tool_choice"),
    ),
    Framework("CrewAI", "crewai_agent", "crewai", "openai-2", grammar=True, sends=("tool_choice",)),
    Framework("AutoGen", "autogen_agent", "autogen-agentchat", "openai-2", sends=("tool_choice",)),
    Framework("AG2", "ag2_agent", "ag2", "openai-3"),
    Framework("Agno", "agno_agent", "agno", "more"),
    Framework(
        "Google ADK",
        "google_adk_agent",
        "google-adk",
        "more",
        result='{"result": "%s"}',
        sends=("max_tokens", "response_format", "tool_choice"),
    ),
    Framework(
        "DSPy",
        "dspy_agent",
        "dspy",
        "openai-2",
        answers=(
            fields(next_thought="Oslo first.", next_tool_name="population", next_tool_args='{"city": "Oslo"}'),
            fields(next_thought="Rome next.", next_tool_name="population", next_tool_args='{"city": "Rome"}'),
            fields(next_thought="Enough.", next_tool_name="finish", next_tool_args="{}"),
            fields(reasoning="2,750,000 is more.", answer=ANSWER),
        ),
        called=(),
        sends=("temperature",),
    ),
)
