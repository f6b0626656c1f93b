"""Which tools of a server a set of scenarios covers, why it does not cover the others, and what helps."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from art_mcp.canonical import canonical
from art_mcp.scenarios.drafting.errors import message_of
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.worlds.alias import WORLD

if TYPE_CHECKING:
    from art_mcp.scenarios.catalog import Form

Status = Literal["covered", "partly", "not"]
"""Covered: calls of the tool worked in scenarios, two different ones if its arguments can vary. Partly: only one call,
or only calls that must fail, or only calls that were not executed. Not: no scenario calls it."""

HALF = 0.5
"""A set that covers a smaller share of the tools gets a warning."""

MAX_LINES = 60
"""Tools that a report names at most, each with its reason."""

MAX_REASON = 300
"""Characters of a reason."""

_FAILURES = {"error", "empty", "unstable", "invalid"}
"""Kinds of dropped tasks that say something of their calls."""

_NEEDS = re.compile(
    r"connect|unreachable|credential|(?:api|access|secret)[ _-]?keys?\b|unauthori[sz]ed|authenticat|log(?:ged)? ?in\b"
    r"|environment variable|not configured|permission|forbidden|\b40[13]\b|name resolution|service not known|\bhost\b"
    r"|network|timed? ?out|(?-i:\b[A-Z]{2,}(?:_[A-Z0-9]+)+\b)",  # at last a variable of the environment
    re.IGNORECASE,
)
"""Errors of a server that lacks something in its surroundings."""

OUT_OF_TIME = "the time was over"
"""Begins the reason of a tool that was not tried."""
UNSTABLE_CHANGES = "the two executions changed different things in the world"
"""The reason of calls that change something else each time."""
_EMPTY = "no call gave anything to ask for"
"""Begins the reason of a tool whose calls all had empty results."""

WORLD_REMEDY = (
    "give each run a copy of what the server works on (--world PATH, with {world} for that path in the server's "
    "command; an empty directory if it only computes), or reset it (--reset CMD)"
)
NEED_REMEDY = "give the server what its message names (--env NAME=VALUE, --header, or start what it connects to)"
TIME_REMEDY = "give more time (--seconds, or --minutes of specialize) or more scenarios (-n)"
EMPTY_REMEDY = "give the server data of which the tool has something to say (in a world, put it there first)"
UNSTABLE_REMEDY = "no values help: what its calls change is another each time, so that no run can be compared with it"
DRAFT_REMEDY = "give the server itself in place of its catalog"


def unknown_value(parameter: str) -> str:
    """The reason of a tool of which no call can be made. parameter: that of which no value is known."""
    return f"no value is known for `{parameter}`"


def change_risk(why: str) -> str:
    """The reason of a tool that may not be called. why: what says that it may change something."""
    return f"it may change something: {why}"


def unreadable_tool(why: str) -> str:
    """The reason of a tool that is left out. why: what is wrong with it."""
    return f"it cannot be read: {why}"


@dataclass(frozen=True, slots=True)
class ToolCoverage:
    """What a set of scenarios has of a tool.

    Args:
        tool: Name of the tool.
        status: Whether the set covers it.
        calls: Number of different calls of it that worked.
        scenarios: Number of scenarios that call it.
        reason: Why it is not covered, in words. Empty: it is, or nobody knows.
        remedy: What helps. Empty: it is covered, or nobody knows.
    """

    tool: str
    status: Status
    calls: int
    scenarios: int
    reason: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.tool}: " + "; ".join(filter(None, (self.reason, self.remedy)))


class Failure(Protocol):
    """A task that was not kept, as `DroppedTask` records it."""

    @property
    def tools(self) -> Sequence[str]:
        """The tools of its calls."""
        ...

    @property
    def kind(self) -> str:
        """The reason as one word."""
        ...

    @property
    def reason(self) -> str:
        """The reason as a sentence, with the tool whose call is at fault: "call 2, TOOL: …"."""
        ...


def cover_tools(
    scenarios: Sequence[MCPScenario],
    failures: Sequence[Failure],
    tools: Sequence[str],
    reasons: Mapping[str, str],
    parameters: Mapping[str, Mapping[str, Form]],
) -> list[ToolCoverage]:
    """What a set has of each tool: those that the server offers, that scenarios call, and that have a reason.

    Args:
        scenarios: The scenarios.
        failures: The tasks that were not kept.
        tools: Names of all tools of the server. Empty: the set is a user's own, and nobody knows what it lacks.
        reasons: Why no call of a tool worked, by its name, as far as the generator knows.
        parameters: The parameters of each tool that can vary (`parameter_forms`).
    """
    uses: dict[str, _Use] = defaultdict(_Use)
    for scenario in scenarios:
        _count(scenario, uses)
    errors: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for failure in failures:
        if tool := _tool_at_fault(failure):
            errors[tool].append((failure.kind, _error(failure, tool)))
    places = {
        parameter
        for use in uses.values()
        for arguments in use.calls.values()
        for parameter, value in arguments.items()
        if _is_place(value)
    }
    coverages = []
    for name in dict.fromkeys([*tools, *uses, *reasons]):
        use, forms = uses[name], parameters.get(name)
        status, reason, remedy = use.status(forms), "", ""
        if tools and status != "covered":
            why = reasons.get(name) or _most_frequent(errors[name], any_worked=bool(use.calls))
            reason, remedy = _reason(use, why), _remedy(use, why, forms or {}, places)
        coverages.append(ToolCoverage(name, status, len(use.calls), use.scenarios, reason, remedy))
    return coverages


def coverage_lines(coverages: Sequence[ToolCoverage]) -> Iterator[str]:
    """Lines of a report: how many tools are covered, and why the others are not.

    Args:
        coverages: As `cover_tools` gives them.
    """
    counts = Counter(coverage.status for coverage in coverages)
    yield (f"tools: {counts['covered']} covered, {counts['partly']} partly, {counts['not']} not (of {len(coverages)})")
    others = [coverage for status in ("partly", "not") for coverage in coverages if coverage.status == status]
    with_reason = [coverage for coverage in others if coverage.reason]
    yield from map(str, with_reason[:MAX_LINES])
    if len(with_reason) > MAX_LINES:
        yield f"and {len(with_reason) - MAX_LINES} more tools"


def coverage_json(coverages: Sequence[ToolCoverage]) -> dict[str, list[Any]]:
    """The coverage as JSON: the names of the tools that are covered, and the others with their reasons.

    Args:
        coverages: As `cover_tools` gives them.
    """
    others: dict[str, list[Any]] = {
        status: [asdict(coverage) for coverage in coverages if coverage.status == status]
        for status in ("partly", "not")
    }
    for coverage in (*others["partly"], *others["not"]):
        del coverage["status"]
    return {"covered": [coverage.tool for coverage in coverages if coverage.status == "covered"], **others}


def coverage_warning(coverages: Sequence[ToolCoverage]) -> str:
    """A warning if fewer than half of the tools are covered, with what helps most of the others. Empty: none is due.

    A set of a user's own gets none: nobody knows what it leaves out.

    Args:
        coverages: As `cover_tools` gives them.
    """
    covered = sum(coverage.status == "covered" for coverage in coverages)
    if covered >= HALF * len(coverages) or not any(coverage.reason for coverage in coverages):
        return ""
    remedies: dict[str, list[str]] = defaultdict(list)
    for coverage in coverages:
        if coverage.remedy:
            remedies[coverage.remedy].append(coverage.tool)
    best = sorted(remedies.items(), key=lambda item: -len(item[1]))[:3]
    what = "; ".join(f"for {_names(tools)}: {remedy}" for remedy, tools in best)
    help_text = f". What helps: {what}" if what else ""
    return f"only {covered} of {len(coverages)} tools are covered, and a model learns no others{help_text}"


class _Use:
    """The calls of a tool in scenarios.

    Attributes:
        scenarios: Number of scenarios that call it.
        calls: Its different calls that worked, as JSON, each with the values of its arguments.
        fails: Whether a call of it must fail.
        drafts: Number of calls that were not executed.
    """

    def __init__(self) -> None:
        self.scenarios = 0
        self.calls: dict[str, dict[str, Any]] = {}
        self.defaults: set[str] = set()
        self.fails = False
        self.drafts = 0

    def status(self, forms: Mapping[str, Form] | None) -> Status:
        """Whether these calls cover the tool.

        Args:
            forms: The parameters that can vary. None: nobody knows, and those of the calls are taken.
        """
        if not self.scenarios:
            return "not"
        if len(self.calls) > 1:
            return "covered"
        for arguments in self.calls.values():
            can_vary = (set(arguments) | self.defaults) if forms is None else set(forms)
            if not {name for name in can_vary if not _is_place(arguments.get(name))}:
                return "covered"
        return "partly"


def _count(scenario: MCPScenario, uses: dict[str, _Use]) -> None:
    """Adds the calls of a scenario."""
    plan = scenario.plan
    for tool in set(scenario.tools):
        uses[tool].scenarios += 1
    for at, step in enumerate(plan.reference):
        use = uses[step.tool]
        observation = plan.observations[at] if at < len(plan.observations) else None
        if observation is None:
            use.drafts += 1
        elif observation.is_error or plan.reply != "result":
            use.fails = True
        else:
            use.calls.setdefault(canonical(step.arguments), step.arguments)
            use.defaults |= set(step.defaults)


def _is_place(value: Any) -> bool:
    """Whether a value is a place of the world: the user has given it, and the tool takes no other."""
    return isinstance(value, str) and re.fullmatch(rf"{WORLD}/[^/]+|\{{world(:[^{{}}]*)?\}}", value) is not None


def _tool_at_fault(failure: Failure) -> str:
    """The tool whose call failed: the one that the reason names, or the last. Empty: no call did."""
    if failure.kind not in _FAILURES:
        return ""
    named = (tool for tool in failure.tools if f", {tool}: " in failure.reason)
    return next(named, failure.tools[-1] if failure.tools else "")


def _error(failure: Failure, tool: str) -> str:
    """The reason without the call that it is of."""
    return re.sub(rf"^.*?\bcall \d+, {re.escape(tool)}: ", "", failure.reason, count=1, flags=re.DOTALL)


def _reason(use: _Use, why: str) -> str:
    """Why a tool is not covered.

    Args:
        use: Its calls.
        why: Why others of its calls did not work. Empty: nobody knows.
    """
    if not use.scenarios:
        return _shorten(why or "no task was made of it")
    if use.calls:
        what = f"only one call of it worked, {canonical(*use.calls.values())}"
    elif use.fails:
        what = "it is called only in tasks that must fail"
    else:
        what = "its calls were not executed"
    return _shorten(f"{what}; {why}" if why else what)


def _most_frequent(errors: Sequence[tuple[str, str]], *, any_worked: bool) -> str:
    """The most frequent error of a tool, in words. Empty: there is none.

    Args:
        errors: The kind and the text of each.
        any_worked: Whether other calls of the tool worked.
    """
    if not errors:
        return ""
    groups = Counter((kind, _skeleton(error)) for kind, error in errors)
    (kind, skeleton), count = groups.most_common(1)[0]
    example = message_of(next(error for own, error in errors if (own, _skeleton(error)) == (kind, skeleton)))
    calls = "1 call" if len(errors) == 1 else f"{len(errors)} calls"
    if count == len(errors) and not any_worked:
        what = _EMPTY if kind == "empty" else "every call failed"
        return f"{what}: {example} ({calls})"
    return f"{count} of {calls} that failed: {example}"


def _skeleton(error: str) -> str:
    """An error without what differs from call to call: numbers, and what stands in quotation marks."""
    return re.sub(r"""(['"`“‘]).*?(['"`”’])|\d+""", "…", error)


def _remedy(use: _Use, why: str, forms: Mapping[str, Form], places: Collection[str]) -> str:
    """What helps a tool that is not covered.

    Args:
        use: Its calls.
        why: Why others of its calls did not work.
        forms: Its parameters that can vary, those first of which a table helps most.
        places: Parameters that have a place of the world in calls of this tool or of others.
    """
    if why.startswith(change_risk("")):
        return WORLD_REMEDY
    if why.startswith(unreadable_tool("")):
        return "mend the server's list of tools"
    if use.drafts and not use.calls:
        return DRAFT_REMEDY
    if why.startswith(OUT_OF_TIME):
        return TIME_REMEDY
    if UNSTABLE_CHANGES in why:
        return UNSTABLE_REMEDY
    if _NEEDS.search(why):
        return NEED_REMEDY
    if why.startswith(_EMPTY):
        return EMPTY_REMEDY
    parameter = _parameter(why, [name for name, form in forms.items() if form != "choice" and name not in places])
    if not parameter:
        return ""
    parameter = parameter if parameter in forms else parameter.partition(".")[0]  # of `ops.*` the whole
    if forms.get(parameter) == "json":
        return f"--resource {parameter}={parameter}.json, a JSON list of values"
    return f"--resource {parameter}={parameter}.txt, a file with one value on each line"


def _parameter(why: str, free: Sequence[str]) -> str | None:
    """The parameter of which values help: the one that the reason names, or the first of which any value can be given.

    Args:
        why: The reason.
        free: Names of parameters.
    """
    if match := re.match(re.escape(unknown_value("\0")).replace(re.escape("\0"), "([^`]+)"), why):
        return match[1]
    named = [name for name in free if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", why)]
    return next(iter([*named, *free]), None)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…"


def _names(tools: Iterable[str]) -> str:
    """Some names, in words."""
    names = list(tools)
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} tools such as {names[0]} and {names[1]}"
