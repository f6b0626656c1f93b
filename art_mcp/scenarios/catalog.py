"""What an MCP server offers: tools, resources and prompts, with their schemas whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from art_mcp.client.connect import Server, connect
from art_mcp.client.sdk import wire
from trainer_server.wire import ConfigError, MCPError

SAMPLED = 20
"""Resources whose content is read."""

SAMPLE = 2_000
"""Characters of a resource that are kept."""

READS = frozenset({
    "analyze", "calculate", "check", "compare", "compute", "convert", "count", "current", "describe", "detect",
    "diff", "echo", "estimate", "explain", "fetch", "find", "format", "get", "has", "help", "info", "inspect",
    "is", "list", "log", "lookup", "parse", "ping", "preview", "print", "query", "read", "render", "resolve",
    "search", "select", "show", "stat", "status", "summarize", "test", "translate", "tree", "validate", "verify",
    "version", "view",
})  # fmt: skip
"""Words in the name of a tool that only looks, where its annotations say nothing."""

WRITES = frozenset({
    "add", "append", "apply", "assign", "book", "buy", "cancel", "clear", "close", "commit", "copy", "create",
    "delete", "deploy", "disable", "drop", "edit", "enable", "exec", "execute", "execution", "checkout", "import",
    "insert", "install", "kill", "merge", "modify", "move", "open", "patch", "pay", "post", "publish", "push",
    "put", "remove", "rename", "reset", "restart", "restore", "revert", "run", "send", "set", "start", "stop",
    "store", "submit", "toggle", "transfer", "truncate", "trigger", "update", "upload", "upsert", "write",
})  # fmt: skip
"""Words in the name of a tool that may change something, whatever else is in it."""


class _Part(BaseModel):
    """As the protocol has it: camelCase in JSON, and fields that we do not know are kept."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")


class CatalogTool(_Part):
    """A tool. input_schema, output_schema: JSON schemas as the server gave them, whole."""

    name: str
    title: str | None = None
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = Field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """The words of its name, lower case."""
        return words(self.name)

    @property
    def destructive(self) -> bool:
        """Whether calling it may destroy or change what should stay.

        `readOnlyHint: true` and `destructiveHint: false` say no. Where an annotation says yes, or says `readOnlyHint:
        false` and no more, it is yes, which is MCP's default. Most servers annotate nothing: then the words of the name
        decide, one of WRITES before one of READS, and without either it is yes again.
        """
        read_only, destructive = self.annotations.get("readOnlyHint"), self.annotations.get("destructiveHint")
        if read_only or destructive is False:
            return False
        return read_only is False or bool(destructive) or not self.reads

    @property
    def reads(self) -> bool:
        """Whether it only looks: `readOnlyHint` says so, or without it the words of the name."""
        found = set(self.words)
        return bool(self.annotations.get("readOnlyHint", found & READS and not found & WRITES))


class CatalogResource(_Part):
    """A resource. sample: the beginning of its content, where it is text and was read."""

    uri: str
    name: str = ""
    title: str | None = None
    description: str = ""
    mime_type: str | None = None
    sample: str | None = None


class ResourceTemplate(_Part):
    uri_template: str
    name: str = ""
    title: str | None = None
    description: str = ""
    mime_type: str | None = None


class CatalogPrompt(_Part):
    """A prompt. arguments: `name`, `description`, `required` of each."""

    name: str
    title: str | None = None
    description: str = ""
    arguments: list[dict[str, Any]] = Field(default_factory=list)


class Catalog(_Part):
    """What a server offers. `model_dump_json(by_alias=True)` and `model_validate_json` are inverse."""

    name: str = "unknown"
    version: str = ""
    instructions: str = ""
    tools: list[CatalogTool] = Field(default_factory=list)
    resources: list[CatalogResource] = Field(default_factory=list)
    templates: list[ResourceTemplate] = Field(default_factory=list)
    prompts: list[CatalogPrompt] = Field(default_factory=list)

    @classmethod
    def of_tools(cls, tools: Iterable[Any], **facts: Any) -> Self:
        """A catalog of tools that were listed elsewhere.

        Args:
            tools: `mcp.types.Tool` objects of either SDK, or their JSON.
            **facts: Other fields of the catalog: `name`, `instructions` and so on.

        Raises:
            ConfigError: A tool is neither.
        """
        return cls(tools=[CatalogTool.model_validate(_given(tool)) for tool in tools], **facts)

    def tool(self, name: str) -> CatalogTool:
        """The tool of that name. Raises ConfigError."""
        for tool in self.tools:
            if tool.name == name:
                return tool
        raise ConfigError(f"{self.name} has no tool {name!r}; it has {', '.join(one.name for one in self.tools)}")

    def text(self) -> str:
        """The catalog as JSON without what is empty, for a model to read."""
        return self.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True)

    def parts(self, max_chars: int) -> Iterator[Catalog]:
        """The catalog in parts, each with the server's name and instructions. Every entry is in exactly one part.

        Args:
            max_chars: Characters of `text()` of a part at most. A single entry that is larger has a part of its own.
        """
        kinds = ("tools", "resources", "templates", "prompts")
        empty = self.model_copy(update={kind: [] for kind in kinds})
        part, size = empty, len(empty.text())
        for kind in kinds:
            for one in getattr(self, kind):
                more = len(one.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True)) + len(kind) + 6
                if part is not empty and size + more > max_chars:
                    yield part
                    part, size = empty, len(empty.text())
                part = part.model_copy(update={kind: [*getattr(part, kind), one]})
                size += more
        yield part


async def read_catalog(server: Server | str | Sequence[str], **options: Any) -> Catalog:
    """Asks a server for all that it offers, and samples the content of its first resources.

    Args:
        server: A connected server, or what `connect` takes.
        **options: Options of `connect`, where it is not connected yet.

    Returns:
        The catalog. A resource that cannot be read has no sample.

    Raises:
        MCPError: The server cannot be used.
    """
    if not isinstance(server, Server):
        async with connect(server, **options) as connected:
            return await read_catalog(connected)
    resources = [CatalogResource.model_validate(one) for one in await server.listing("resources/list")]
    for resource in resources[:SAMPLED]:
        try:
            contents = await server.read(resource.uri)
        except MCPError:
            continue
        texts = [content["text"] for content in contents if isinstance(content.get("text"), str)]
        resource.sample = "\n".join(texts)[:SAMPLE] or None
    return Catalog(
        name=server.name,
        version=server.version,
        instructions=server.instructions,
        tools=[CatalogTool.model_validate(one) for one in await server.listing("tools/list")],
        resources=resources,
        templates=[ResourceTemplate.model_validate(one) for one in await server.listing("resources/templates/list")],
        prompts=[CatalogPrompt.model_validate(one) for one in await server.listing("prompts/list")],
    )


def words(name: str) -> list[str]:
    """`getUser_id` → get, user, id."""
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())


def _given(tool: Any) -> dict[str, Any]:
    found = wire(tool) if isinstance(tool, BaseModel) else tool
    if not isinstance(found, Mapping) or "name" not in found:
        raise ConfigError(f"expected a tool of the MCP SDK or its JSON, found {type(tool).__name__}: {tool!r:.100}")
    # Nulls of optional fields say nothing; those inside schemas do.
    return {key: value for key, value in found.items() if value is not None}
