"""The English of tasks: what the TOML files beside this module say. They are read and checked when this is imported."""

from __future__ import annotations

import string
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from trainer_server.wire import ConfigError

VerbKind = Literal["read", "name", "change", "edit", "set", "join", "make", "add", "remove"]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1)]
WordSet = Annotated[frozenset[Text], Field(min_length=1)]

_DO, _QUESTION = {"do", "Do", "doing"}, {"ask", "Ask", "wh"}
_FAMILIES: Mapping[str, set[str]] = {
    "do": _DO,
    "do and ask": {*_DO, *_QUESTION, "thing"},
    "ask": _QUESTION,
    "thing": {"thing", "Thing"},
    "then": {"first", "First", "do"},
    "both": {"one", "two"},
    "again": {"x"},
    **{family: set() for family in ("opener", "closer", "thanks", "greeting", "abilities")},
}
"""The families of requests, with the slots that their forms may have."""
_ARGUMENTS = set(
    "in into out_of new_path owner as other against without query pattern origin goal start end time date text".split()  # noqa: SIM905
)
"""The ways to say an argument."""


def _check_slots(form: str, names: set[str]) -> str:
    """Returns a form if it has slots of these names alone, and one of them at least where there are any."""
    try:
        slots = {name for _, name, _, _ in string.Formatter().parse(form) if name is not None}
    except ValueError as error:
        raise ValueError(f"{form!r}: {error}") from None
    if slots <= names and bool(slots) is bool(names):
        return form
    choice = ", ".join(f"{{{name}}}" for name in sorted(names)) or "none"
    raise ValueError(f"{form!r}: its slots must be among these: {choice}")


def _form(*slots: str) -> AfterValidator:
    return AfterValidator(lambda form: _check_slots(form, set(slots)))


NumberForms = Annotated[tuple[Annotated[str, _form("")], ...], Field(min_length=1)]


class _Table(BaseModel):
    """A table of a file. Keys that it does not know are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WordSets(_Table):
    """The table `words` of `lexicon.toml`."""

    prepositions: WordSet
    fillers: WordSet
    origins: WordSet
    goals: WordSet
    places: WordSet
    sections: WordSet
    surfaces: WordSet
    outcomes: WordSet
    limits: WordSet
    amounts: WordSet
    suffixes: WordSet
    particles: WordSet
    verb_nouns: WordSet
    texts: WordSet
    judgements: WordSet
    text_verbs: WordSet
    search_terms: WordSet
    queries: WordSet
    names: WordSet
    negations: WordSet
    containers: WordSet
    path_nouns: WordSet
    readable: WordSet
    finding: WordSet
    kinds: WordSet
    mass_nouns: WordSet
    doubling: WordSet
    participles: WordSet
    vowel_sounds: Texts
    consonant_sounds: Texts


class Lexicon(_Table):
    """`lexicon.toml`: how people say what the names of tools and parameters say."""

    verbs: dict[VerbKind, dict[str, Texts]]
    words: WordSets
    plurals: dict[str, Text]
    switches: dict[str, tuple[Text, Text]]
    leads: dict[str, Texts]
    bounds: dict[str, Text]
    numbers: dict[str, NumberForms]
    abbreviations: dict[str, Text]
    units: dict[str, Text]

    @field_validator("numbers")
    @classmethod
    def _has_a_limit(cls, numbers: dict[str, NumberForms]) -> dict[str, NumberForms]:
        if "limit" not in numbers:
            raise ValueError("`limit` is missing, which every word of `words.limits` is said with")
        return numbers


class Answers(_Table):
    """The table `answers` of `sentences.toml`."""

    value: Annotated[str, _form("value")]
    leaf: Annotated[str, _form("head", "verb", "value")]
    count: Annotated[str, _form("verb", "value", "items")]
    yes: Annotated[str, _form("item")]
    no: Annotated[str, _form("item")]
    success: Text
    both: Annotated[str, _form("one", "two")]
    cannot: Annotated[str, _form("do")]
    missing: Annotated[str, _form("noun", "value")]
    refusal: Annotated[str, _form("reason")]
    welcome: Texts
    hello: Texts
    able: Annotated[tuple[Annotated[str, _form("things")], ...], Field(min_length=1)]


class Errand(_Table):
    """Something that people ask for and that a server may have no tool for.

    Attributes:
        do: What is requested, in the imperative.
        about: Names of it, of which a refusal mentions at least one.
        needs: Words of tools that could do it.
    """

    do: Text
    about: Texts
    needs: WordSet


class Sentences(_Table):
    """`sentences.toml`: the forms of requests, and the answers to them."""

    requests: dict[str, Texts]
    arguments: dict[str, Texts]
    answers: Answers
    errands: tuple[Errand, ...]

    @field_validator("arguments")
    @classmethod
    def _has_all_kinds(cls, arguments: dict[str, Texts]) -> dict[str, Texts]:
        if arguments.keys() != _ARGUMENTS:
            raise ValueError(f"the ways must be {', '.join(sorted(_ARGUMENTS))}")
        for kind, forms in arguments.items():
            for form in forms:
                if "{text}" not in _check_slots(form, {"text", "own"}):
                    raise ValueError(f"{kind}: {form!r} does not say the value: {{text}}")
        return arguments

    @field_validator("requests")
    @classmethod
    def _has_all_families(cls, requests: dict[str, Texts]) -> dict[str, Texts]:
        if requests.keys() != _FAMILIES.keys():
            raise ValueError(f"the families must be {', '.join(_FAMILIES)}")
        for family, forms in requests.items():
            for form in forms:
                _check_slots(form, _FAMILIES[family])
            if len(forms) < 2:
                raise ValueError(f"{family} needs two forms at least, as some are held out from training")
        return requests


class CommonValues(_Table):
    """`values.toml`: values that anybody knows."""

    names: Annotated[tuple[Text, ...], Field(min_length=2)]
    activities: Texts
    things: Texts
    timezone_areas: Texts
    well_known: tuple[str, ...]
    lists: dict[str, Texts]
    same: dict[str, str]
    formats: dict[str, str]

    @model_validator(mode="after")
    def _names_lists(self) -> CommonValues:
        if unknown := {*self.same.values(), *self.well_known} - self.lists.keys():
            raise ValueError(
                f"`same` and `well_known` name lists that are not in `lists`: {', '.join(sorted(unknown))}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb in the name of a tool.

    Args:
        phrases: Verb phrases that mean it, each of which an object can follow.
        reads: Whether it only reads.
        names: Whether the object alone names the result: "the price" for `get_price`.
        makes: Whether it makes something that was not there.
        removes: Whether it removes something.
        inward: Whether it puts something into something else.
        sets: Whether it gives a property another value.
        edits: Whether it changes what belongs to a thing.
    """

    phrases: tuple[str, ...]
    reads: bool = True
    names: bool = False
    makes: bool = False
    removes: bool = False
    inward: bool = False
    sets: bool = False
    edits: bool = False


Table = TypeVar("Table", bound=_Table)


def read_language(path: Path, table: type[Table]) -> Table:
    """Reads a file of the language.

    Args:
        path: The file, in TOML.
        table: What it must have.

    Raises:
        ConfigError: It cannot be read, or a key in it is missing, unknown or wrong.
    """
    try:
        return table.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}. Correct the file, or install art-langgraph anew") from None
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"])) or "the file"
        raise ConfigError(
            f"{path}: {key}: {fault['msg']}. Correct this key; the comments in the file say what it holds"
        ) from None


def _verbs(lexicon: Lexicon) -> dict[str, Verb]:
    """The verbs by the words that mean them in names of tools."""
    verbs: dict[str, Verb] = {}
    for kind, table in lexicon.verbs.items():
        for names, phrases in table.items():
            verb = Verb(
                phrases,
                reads=kind in ("read", "name"),
                names=kind == "name",
                makes=kind in ("make", "add"),
                removes=kind == "remove",
                inward=kind in ("join", "add"),
                sets=kind == "set",
                edits=kind == "edit",
            )
            for name in names.split():
                itself = tuple(phrase.format(name) for phrase in phrases)
                verbs[name] = verb if itself == phrases else replace(verb, phrases=itself)
    return verbs


_FOLDER = Path(__file__).parent
LEXICON = read_language(_FOLDER / "lexicon.toml", Lexicon)
SENTENCES = read_language(_FOLDER / "sentences.toml", Sentences)
VALUES = read_language(_FOLDER / "values.toml", CommonValues)
WORDS = LEXICON.words
VERBS = _verbs(LEXICON)
UNITS = {unit: form for units, form in LEXICON.units.items() for unit in units.split()}
