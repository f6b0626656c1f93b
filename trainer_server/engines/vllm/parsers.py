"""Chooses vLLM's parsers of tool calls and thoughts for a model: by its chat template, its family, or as the user says.

The table of families is in `parser_table.py`; the names that exist come from the installed vLLM (`registry.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.vllm.parser_table import FAMILIES, THOUGHTS, Family
from trainer_server.engines.vllm.registry import Registry, registry
from trainer_server.wire import ConfigError, EngineError

AUTO = "auto"
"""Value of the flags for a choice by the model's files."""
NONE = "none"
"""Value of the flags for no parser."""
TOOL_FLAG = "--tool-call-parser"
REASONING_FLAG = "--reasoning-parser"
_PLUGINS = ("--tool-parser-plugin", "--reasoning-parser-plugin")
"""Flags of vLLM that add parsers."""

ParserTokens = Mapping[str, Sequence[str]]
"""Names of parsers that the installed vLLM has, with the tokens that each needs. None instead: they are not known."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One parser, or none.

    Args:
        name: The parser's name with vLLM; None: no parser.
        why: The reason, as the end of a sentence.
    """

    name: str | None
    why: str

    def __str__(self) -> str:
        return f"{self.name or NONE}, since {self.why}"


@dataclass(frozen=True, slots=True)
class Parsers:
    """The parsers that vLLM is started with.

    Args:
        tools: Parser of tool calls. Without one, vLLM refuses requests with tools.
        reasoning: Parser of thoughts. Without one, thoughts stay in the text of an answer.
        family: The family that the model was found to belong to; None: unknown.
        constrains_calls: Whether vLLM constrains all answers that may be tool calls by a grammar.
    """

    tools: Choice
    reasoning: Choice
    family: str | None = None
    constrains_calls: bool = False

    @property
    def flags(self) -> list[str]:
        """Flags of vLLM."""
        tools = ["--enable-auto-tool-choice", TOOL_FLAG, self.tools.name] if self.tools.name else []
        return [*tools, *([REASONING_FLAG, self.reasoning.name] if self.reasoning.name else [])]

    def lines(self) -> list[str]:
        """Two lines for users: `tools: hermes, since …` and `reasoning: …`."""
        return [f"tools: {self.tools}", f"reasoning: {self.reasoning}"]


def choose_parsers(
    files: ModelFiles,
    vllm_registry: Registry | None,
    *,
    tools: str = AUTO,
    reasoning: str = AUTO,
    args: Sequence[str] = (),
) -> Parsers:
    """Chooses the parsers for a model.

    Args:
        files: The model's files.
        vllm_registry: Names of the installed vLLM; None: not known, so that the best choice of the table is taken
            unchecked.
        tools: `--tool-call-parser`: `auto`, `none`, or a name.
        reasoning: `--reasoning-parser`: `auto`, `none`, or a name.
        args: `--engine-args`. A parser or a chat template that they name overrides the choice.

    Raises:
        ConfigError: A name that the installed vLLM does not know, or whose tokens the tokenizer lacks; or a chat
            template that cannot be read.
    """
    if template := argument(args, "--chat-template"):
        files = ModelFiles(files.directory, _template(template))
    family = next((family for family in FAMILIES if family.fits(files)), None)
    tool_names = vllm_registry.tool_parsers if vllm_registry else None
    reasoning_names = vllm_registry.reasoning_parsers if vllm_registry else None
    version = vllm_registry.version if vllm_registry else "?"
    tool_choice = _explicit_choice(TOOL_FLAG, tools, args, tool_names, files)
    tool_choice = tool_choice or _tools(files, family, tool_names, version)
    reasoning_choice = _explicit_choice(REASONING_FLAG, reasoning, args, reasoning_names, files)
    strict = argument(args, "--tool-strict-level") in ("function", "parameter")
    return Parsers(
        tools=tool_choice,
        reasoning=reasoning_choice or _reasoning(files, family, reasoning_names, version),
        family=family.name if family else None,
        constrains_calls=strict or (vllm_registry is not None and tool_choice.name in vllm_registry.constraining),
    )


def parsers_of(
    directory: str | Path, cache: Path, *, tools: str = AUTO, reasoning: str = AUTO, args: Sequence[str] = ()
) -> Parsers:
    """Chooses the parsers for a model directory, with the names of the installed vLLM.

    Args:
        directory: The model's directory.
        cache: vLLM's environment is in it.
        tools: As for `choose_parsers`.
        reasoning: As for `choose_parsers`.
        args: As for `choose_parsers`.

    Raises:
        ConfigError: As `choose_parsers`.
        EngineError: A name was given, and vLLM does not say whether it knows it.
    """
    files = ModelFiles(Path(directory))
    parsers = choose_parsers(files, None, tools=tools, reasoning=reasoning, args=args)
    if not parsers.flags:
        return parsers
    try:
        names = registry(cache)
    except EngineError:
        if not {tools, reasoning} <= {AUTO, NONE}:
            raise
        return parsers
    return choose_parsers(files, names, tools=tools, reasoning=reasoning, args=args)


def check_parser_names(cache: Path, *, tools: str, reasoning: str) -> None:
    """Raises ConfigError for a parser that the installed vLLM does not know, EngineError if it does not say."""
    for flag, name in ((TOOL_FLAG, tools), (REASONING_FLAG, reasoning)):
        if name not in (AUTO, NONE):
            names = registry(cache)
            _check(flag, name, names.tool_parsers if flag == TOOL_FLAG else names.reasoning_parsers)


def no_tools_reason(url: str, parsers: Parsers | None) -> str:
    """Why a vLLM without a parser of tool calls answers no requests with tools, with the remedy.

    Args:
        url: Its address.
        parsers: The parsers that it was started with; None: it runs elsewhere.
    """
    if parsers is None:
        return (
            f"the vLLM at {url} reads no tool calls: start it with --enable-auto-tool-choice {TOOL_FLAG} NAME. "
            "`art-langgraph engine command` prints the line for this model"
        )
    return (
        f"the server reads no tool calls of this model, since {parsers.tools.why}. Start `art-langgraph serve` with "
        f"{TOOL_FLAG} NAME; `art-langgraph doctor` says more about the model"
    )


def argument(args: Sequence[str], flag: str) -> str | None:
    """The value of a flag in a command line, `--flag value` or `--flag=value`; None: it is not there."""
    for at, word in reversed(list(enumerate(args))):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else next(iter(args[at + 1 :]), "")
    return None


def _explicit_choice(
    flag: str, name: str, args: Sequence[str], parser_tokens: ParserTokens | None, files: ModelFiles
) -> Choice | None:
    """The choice of the user; None: there is none, and the model's files decide."""
    if in_args := argument(args, flag):
        name, why = in_args, "--engine-args name it"
    elif name == AUTO:
        return None
    elif name == NONE:
        return Choice(None, f"{flag} none was given")
    else:
        why = f"{flag} names it"
    if parser_tokens is not None and not any(argument(args, plugin) for plugin in _PLUGINS):
        _check(flag, name, parser_tokens)
        if token := _lacking(parser_tokens[name], files):
            raise ConfigError(
                f"{flag} {name}: this parser needs the token {token}, which the model's tokenizer lacks, so that vLLM "
                f"would not start. Name another parser, or leave {flag} out to have one chosen"
            )
    return Choice(name, why)


def _lacking(tokens: Sequence[str], files: ModelFiles) -> str | None:
    """The first of these tokens that the tokenizer lacks; None if it has all, or cannot be read."""
    return next((token for token in tokens if files.has_token(token) is False), None)


def _check(flag: str, name: str, parser_names: Collection[str]) -> None:
    if name not in parser_names:
        near = difflib.get_close_matches(name, parser_names, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"{flag} {name}: the installed vLLM has no such parser.{hint} It has: {', '.join(parser_names)}"
        )


def _tools(files: ModelFiles, family: Family | None, names: ParserTokens | None, version: str) -> Choice:
    if family and family.tools:
        why = f"the chat template writes {' and '.join(text.strip() for text in family.writes)}"
        why = f"the model is of the family {family.name}" if family.rendered_by_vllm else why
        return _first(family.tools, names, version, files, why)
    if not files.template:
        return Choice(None, "the model has no chat template")
    if not files.shows_tools:
        return Choice(None, "the chat template does not show tools to the model")
    return Choice(
        None, f"the chat template writes tool calls in a form that is not in our table; {TOOL_FLAG} names one"
    )


def _reasoning(files: ModelFiles, family: Family | None, names: ParserTokens | None, version: str) -> Choice:
    if family and family.reasoning is not None:
        if not family.reasoning:
            return Choice(
                None, f"some models of the family {family.name} think and some do not; {REASONING_FLAG} names one"
            )
        if family.thinks not in files.template:
            return Choice(None, f"the chat template writes no {family.thinks}")
        why = f"the chat template writes {family.thinks}" if family.thinks else f"the model is {files.model_type}"
        return _first(family.reasoning, names, version, files, why)
    for thoughts in THOUGHTS:
        if thoughts.fits(files):
            why = f"the chat template writes {' and '.join(thoughts.writes)}"
            return _first(thoughts.reasoning, names, version, files, why)
    if "</think>" in files.template:
        return Choice(
            None,
            f"the chat template knows </think>, and does not say that each answer thinks; {REASONING_FLAG} names one",
        )
    return Choice(None, "the chat template writes no thoughts")


def _first(preferences: Sequence[str], names: ParserTokens | None, version: str, files: ModelFiles, why: str) -> Choice:
    """The first parser that the installed vLLM has and that the tokenizer allows."""
    name = preferences[0] if names is None else next((name for name in preferences if name in names), None)
    if name is None:
        return Choice(None, f"{why}, and the installed vLLM {version} has no parser for it ({', '.join(preferences)})")
    if names and (token := _lacking(names[name], files)):
        return Choice(None, f"{why}, but {token} is no token of the tokenizer, as the parser {name} needs it")
    if name != preferences[0]:
        why = f"{why}; {preferences[0]} would fit better, and the installed vLLM {version} does not have it"
    return Choice(name, why)


def _template(value: str) -> str:
    """A chat template as vLLM's --chat-template takes it: a file, or the template itself."""
    path = Path(value).expanduser()
    if any(mark in value for mark in "{}\n"):
        return value
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"--engine-args --chat-template {value}: {error.strerror}") from None
