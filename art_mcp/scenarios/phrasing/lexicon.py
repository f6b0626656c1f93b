"""English verbs and nouns of computing: how people say what the names of tools and parameters say."""

from __future__ import annotations

from dataclasses import dataclass

from art_mcp.client.effects import words


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb in the name of a tool.

    Args:
        phrases: Verb phrases that mean it, each of which an object can follow.
        reads: Whether it only reads.
        names: Whether the object alone names the result: "the price" for `get_price`.
        makes: Whether it makes something that was not there.
        removes: Whether it removes something.
    """

    phrases: tuple[str, ...]
    reads: bool = True
    names: bool = False
    makes: bool = False
    removes: bool = False


def _read(*said: str, names: bool = False) -> Verb:
    return Verb(said, names=names)


def _act(*said: str, makes: bool = False, removes: bool = False) -> Verb:
    return Verb(said, reads=False, makes=makes, removes=removes)


_GET = _read("get", "give me", "look up", "fetch", "find out", "show me", names=True)
_LIST = _read("list", "show me", "give me", "go through", "look at", names=True)
_SHOW = _read("show me", "show", "look at", "pull up", names=True)
_READ = _read("read", "open", "look at", "have a look at", "show me", names=True)
_SEARCH = _read("search", "look through", "search through")
_FIND = _read("find", "look for", "find me")
_CHECK = _read("check", "have a look at", "look at", names=True)
_COUNT = _read("count", "count up")
_COMPUTE = _read("work out", "compute", "calculate")
_DESCRIBE = _read("describe", "look at", "explain", names=True)
_COMPARE = _read("compare", "put side by side")
_MAKE = _act("create", "make", "set up", makes=True)
_ADD = _act("add", "put in", "enter", makes=True)
_PUT = _act("add", makes=True)
_DELETE = _act("delete", "remove", "get rid of", removes=True)
_CHANGE = _act("change", "edit", "update", "modify")
_WRITE = _act("write", "save", makes=True)
_RUN = _act("run", "execute")
_START = _act("start", "kick off", "launch")

VERBS: dict[str, Verb] = {
    "get": _GET,
    "fetch": _GET,
    "retrieve": _GET,
    "lookup": _GET,
    "load": _GET,
    "obtain": _GET,
    "query": _GET,
    "tell": _GET,
    "pull": _act("pull"),
    "list": _LIST,
    "enumerate": _LIST,
    "browse": _LIST,
    "show": _SHOW,
    "display": _SHOW,
    "view": _SHOW,
    "print": _SHOW,
    "preview": _SHOW,
    "render": _SHOW,
    "read": _READ,
    "cat": _READ,
    "open": _READ,
    "describe": _DESCRIBE,
    "explain": _DESCRIBE,
    "inspect": _read("inspect", "look into", names=True),
    "summarize": _read("summarize", "sum up"),
    "search": _SEARCH,
    "grep": _SEARCH,
    "find": _FIND,
    "locate": _FIND,
    "discover": _FIND,
    "check": _CHECK,
    "verify": _read("verify", "check"),
    "validate": _read("validate", "check"),
    "test": _read("test", "try"),
    "detect": _read("detect", "spot"),
    "analyze": _read("analyze", "examine"),
    "analyse": _read("analyse", "examine"),
    "count": _COUNT,
    "compute": _COMPUTE,
    "calculate": _COMPUTE,
    "evaluate": _read("evaluate", "work out"),
    "estimate": _read("estimate", "work out"),
    "sum": _read("sum", "add up"),
    "compare": _COMPARE,
    "convert": _read("convert", "convert", "translate"),
    "translate": _read("translate"),
    "format": _read("format"),
    "parse": _read("parse"),
    "encode": _read("encode"),
    "decode": _read("decode"),
    "hash": _read("hash"),
    "echo": _read("echo", "repeat", "say back"),
    "ping": _read("ping"),
    "resolve": _read("resolve"),
    "ask": _read("ask"),
    "simulate": _read("simulate", "play through"),
    "create": _MAKE,
    "make": _MAKE,
    "new": _MAKE,
    "generate": _act("generate", "create", "make", makes=True),
    "build": _act("build", "make", makes=True),
    "register": _act("register", makes=True),
    "add": _ADD,
    "append": _PUT,
    "insert": _act("insert", "add", makes=True),
    "attach": _act("attach", makes=True),
    "store": _act("store", "save", makes=True),
    "save": _WRITE,
    "write": _WRITE,
    "put": _WRITE,
    "record": _act("record", "note down", makes=True),
    "remember": _act("remember", "keep in mind", makes=True),
    "upload": _act("upload", makes=True),
    "delete": _DELETE,
    "remove": _DELETE,
    "drop": _DELETE,
    "erase": _DELETE,
    "destroy": _DELETE,
    "clear": _act("clear"),
    "purge": _DELETE,
    "unlink": _DELETE,
    "cancel": _act("cancel", "call off", removes=True),
    "update": _CHANGE,
    "edit": _CHANGE,
    "modify": _CHANGE,
    "change": _CHANGE,
    "patch": _act("patch", "change"),
    "set": _act("set", "change"),
    "replace": _act("replace", "swap"),
    "rename": _act("rename"),
    "move": _act("move", "relocate"),
    "copy": _act("copy", "duplicate", makes=True),
    "merge": _act("merge"),
    "commit": _act("commit"),
    "push": _act("push"),
    "reset": _act("reset"),
    "revert": _act("revert", "undo"),
    "restore": _act("restore", "bring back"),
    "undo": _act("undo"),
    "checkout": _act("check out", "switch to", "go to"),
    "switch": _act("switch to", "change to"),
    "stage": _act("stage"),
    "tag": _act("tag"),
    "sign": _act("sign"),
    "lock": _act("lock"),
    "unlock": _act("unlock"),
    "archive": _act("archive"),
    "assign": _act("assign"),
    "close": _act("close"),
    "reopen": _act("reopen"),
    "complete": _act("complete", "finish"),
    "finish": _act("finish", "complete"),
    "send": _act("send"),
    "post": _act("post"),
    "publish": _act("publish"),
    "share": _act("share"),
    "reply": _act("reply"),
    "import": _act("import"),
    "export": _act("export"),
    "download": _act("download"),
    "install": _act("install"),
    "run": _RUN,
    "execute": _RUN,
    "exec": _RUN,
    "call": _act("call"),
    "invoke": _RUN,
    "trigger": _act("trigger", "start"),
    "start": _START,
    "launch": _START,
    "stop": _act("stop", "end"),
    "pause": _act("pause"),
    "resume": _act("resume"),
    "restart": _act("restart"),
    "kill": _act("kill", "end"),
    "enable": _act("enable", "switch on"),
    "disable": _act("disable", "switch off"),
    "toggle": _act("toggle", "switch"),
    "subscribe": _act("subscribe to"),
    "schedule": _act("schedule", "plan", makes=True),
    "book": _act("book", "reserve", makes=True),
    "navigate": _act("navigate to", "go to"),
    "click": _act("click"),
    "type": _act("type"),
    "fill": _act("fill in"),
    "annotate": _act("annotate"),
    "compress": _act("compress"),
    "gzip": _act("gzip", "compress"),
    "zip": _act("zip"),
    "extract": _read("extract"),
    "increment": _act("increment"),
    "apply": _act("apply"),
    "submit": _act("submit"),
}

PREPOSITIONS = frozenset(words("by with as of for from in on at to into via without using"))
"""Words in the names of tools behind which the object ends."""

FILLERS = frozenset(words("the a an all my this tool mcp api do multiple many several specific given single"))
"""Words in the names of tools that say nothing."""

ORIGINS = frozenset(words("from source src origin base old since start begin parent"))
"""First words of parameters from which something goes out."""

GOALS = frozenset(words("to target destination dest end until new into output"))
"""First words of parameters to which something goes."""

PLACES = frozenset(
    words(
        "path dir directory folder repo repository database root workspace cwd project location city country region "
        "place timezone zone channel room bucket"
    )
)
"""Last words of parameters of a place: in what."""

LIMITS = frozenset(words("limit max maximum top k n num size take"))
"""Words of parameters that say how much is wanted."""

TEXTS = frozenset(
    words(
        "message text content contents body comment note insight prompt question input data summary observation fact "
        "detail remark"
    )
)
"""Last words of parameters that take any text."""

TELLING = frozenset(words("send post publish say share run"))
"""Verbs whose object is a text although they make nothing."""

WANTED = frozenset(words("query q pattern keyword keywords term terms search phrase regex filter glob"))
"""Last words of parameters that say what is looked for."""

NAMED = frozenset(words("name title label slug key"))
"""Last words of parameters that name a thing."""

NEGATIONS = frozenset(words("exclude excluding not without ignore skip omit no"))
"""First words of parameters that say what is left out."""

CONTAINERS = frozenset(
    words("file document page log list directory folder tree graph table status diff text content memo note readme")
)
"""Nouns of things in which something is, and is not a property of theirs."""

PATHED = frozenset(words("file directory folder document page table"))
"""Nouns of things that a path or a name names."""

READABLE = frozenset(words("file document page text content memo note readme"))
"""Nouns of things that have lines."""

FINDING = frozenset(words("list search find query match glob grep"))
"""Words of tools that give the names of readable things, and not what is in them."""

KINDS = frozenset(words("type kind category class"))
"""Last words of parameters of which the value says of what kind a thing is."""

SWITCHES = {
    "include": "including",
    "with": "with",
    "show": "showing",
    "recursive": "recursively",
    "dry": "as a dry run",
    "force": "by force",
    "verbose": "in detail",
    "reverse": "in reverse",
    "follow": "following",
}
"""First words of parameters that are switched on, and how a wish says so."""

OFF = {"include": "without", "with": "without", "show": "without", "follow": "without following"}
"""The same for parameters that are switched off. Others are said by their names."""

COUNTED = {
    "head": ("limited to the first {} lines", "with just the first {} lines"),
    "tail": ("limited to the last {} lines", "with just the last {} lines"),
    "limit": ("with at most {} entries", "limited to {} entries", "with no more than {} entries"),
    "depth": ("down to depth {}", "to a depth of {}"),
    "page": ("page {}", "on page {}"),
    "offset": ("from offset {}", "starting at offset {}"),
    "duration": ("lasting {}", "with a duration of {}"),
    "steps": ("in {} steps", "with {} steps"),
    "times": ("{} times",),
}
"""Numbers by the last word of their parameter, as people say them."""
