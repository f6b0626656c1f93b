"""What the names of parameters say: which is the object of the verb, which an origin, which a goal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from art_mcp.client.effects import words
from art_mcp.scenarios.observe import meanings
from art_mcp.scenarios.phrasing.english import one_of
from art_mcp.scenarios.phrasing.language import LEXICON, UNITS, WORDS
from art_mcp.scenarios.phrasing.sense import Sense

IDENTIFIERS = WORDS.names | {"id", "number"}
"""Names of parameters that take what identifies a thing."""

_NAMING = {"name", "id", "path", "key"}


def label(name: str) -> str:
    """The name of a parameter as words, without a last one that says nothing: `range_str` → range, `qty` → quantity."""
    parts = [LEXICON.abbreviations.get(part, part) for part in words(name)]
    return " ".join(parts[:-1] if len(parts) > 1 and parts[-1] in WORDS.suffixes else parts) or name


def lead_of(parts: Sequence[str]) -> str:
    """The preposition with which the name of a parameter begins. Empty: there is none."""
    return parts[0] if parts and len(parts) <= 3 and parts[0] in WORDS.prepositions | LEXICON.leads.keys() else ""


def object_of(sense: Sense, arguments: Mapping[str, Any], every: Collection[str]) -> str | None:
    """The argument that names the object of the verb. None: there is none.

    Args:
        sense: What the tool does.
        arguments: The arguments that are short enough to be in a sentence.
        every: The names of all arguments.
    """
    verb = sense.verb
    makes = verb.makes and "copy" not in verb.phrases
    names = [name for name, value in arguments.items() if not isinstance(value, bool)]
    names = [name for name in names if makes or not isinstance(arguments[name], dict)]
    if not sense.noun:
        return _object_alone(sense, arguments, names)
    own = IDENTIFIERS | {"new_name", "newName"} if makes else IDENTIFIERS
    ways: tuple[Callable[[str], bool], ...] = (
        lambda name: bool(sense.key) and not sense.many and label(name) == sense.key,
        lambda name: sense.many and not verb.reads and name in WORDS.amounts,
        lambda name: not is_result(sense, name, every) and _is_named(sense, name, arguments[name]),
        lambda name: (verb.makes or not sense.many) and (name in own or meanings(name) == ["id"]),
        lambda name: not verb.sets and one_of(label(name)) == one_of(sense.noun),
        lambda name: makes and bool({*meanings(name)[-1:]} & WORDS.texts) and isinstance(arguments[name], str),
        lambda name: len(names) == 1 and sense.acts and has_objects(arguments[name]),
    )
    return next((name for fits in ways for name in names if fits(name)), None)


def _object_alone(sense: Sense, arguments: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The same for a verb without a noun: `show(revision)`, `add(files)`, `echo(message)`."""
    lists = [name for name in names if isinstance(arguments[name], list | dict) and arguments[name]]
    others = [name for name in names if len(names) == 1 or not set(meanings(name)) & WORDS.places]
    takes_text = sense.verb.makes or not sense.acts or sense.verb.phrases[0] in WORDS.text_verbs
    skipped = WORDS.search_terms if takes_text else WORDS.search_terms | WORDS.texts
    others = [name for name in others if len(name) > 1 and not set(words(name)[-1:]) & (skipped | UNITS.keys())]
    return next(iter(lists if len(lists) == 1 else others), None)


def is_result(sense: Sense, name: str, every: Collection[str]) -> bool:
    """Whether an argument is what a property becomes: `set_status(item_id, status)`. every: all names of arguments."""
    parts = meanings(name)
    if parts[-1:] == ["id"] and sense.verb.phrases[0] == "set" and len(every) > 1:  # set_parent(id, parent_id)
        parts = parts[:-1]
    return sense.verb.sets and bool(sense.noun) and parts == meanings(sense.noun)


def _is_named(sense: Sense, name: str, value: Any) -> bool:
    """Whether an argument is the name of what the noun says."""
    noun, parts = meanings(sense.noun) or sense.noun.split(), meanings(label(name)) or [""]
    whole, naming = isinstance(value, list) or not sense.many, parts[-1] in _NAMING
    if parts == [noun[-1]] or (parts[0] in noun and naming and not sense.names and (whole or sense.acts)):
        return True  # create_branch(branch_name), delete_entities(entityNames)
    if (parts[0] == noun[-1] and naming and whole) or (
        parts == ["name"] and isinstance(value, list) and not sense.verb.makes
    ):
        return True  # get_item(item_id), open_nodes(names)
    path = parts[-1] in ("path", "file", "directory", "name", "url", "uri") and not set(words(name)[:1]) & WORDS.goals
    return whole and path and noun[-1] in WORDS.path_nouns  # read_file(path)


def origin_goal_pairs(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """The pairs of an origin and a goal, with what both are: from_zone, to_zone, zone."""
    pairs = []
    for origin in names:
        for goal in names:
            start, end = words(origin), words(goal)
            for first, about, last, same in (
                (start[:1], start[1:], end[:1], end[1:]),
                (start[-1:], start[:-1], end[-1:], end[:-1]),
            ):
                if about == same and set(first) & WORDS.origins and set(last) & WORDS.goals:
                    pairs.append((origin, goal, " ".join(word for word in about if word not in ("id", "name"))))
                    break
    return pairs


def is_nested(value: Any, depth: int = 0) -> bool:
    """Whether a value has lists in lists, or objects in objects."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return depth > 2 or any(
        type(item) is type(value) or is_nested(item, depth + 1) for item in inside if isinstance(item, dict | list)
    )


def has_objects(value: Any) -> bool:
    """Whether an argument is an object, or a list of objects."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))
