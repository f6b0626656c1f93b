"""The catalog of an MCP server: tools, resources and prompts, with complete schemas."""

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
"""Maximum number of resources whose content is read."""

SAMPLE = 2_000
"""Maximum number of characters of a resource that are kept."""


def words(name: str) -> list[str]:
    """The words and numbers in a name, in lower case: `getUser_id` → get, user, id; `getURLText` → get, url, text."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", " ", name)
    return re.findall(r"[a-z]+|\d+", apart.lower())


READING_VERBS = frozenset(
    words(
        "analyze analyse calculate check compare compute convert count describe detect diff echo estimate explain "
        "fetch find get has help inspect is list lookup parse ping preview read retrieve search show "
        "summarize summarise translate validate verify view"
    )
)
"""First words in the names of tools that only read. They decide for tools without annotations."""

CHANGING_VERBS = frozenset(
    words(
        "add append apply cancel clear create delete deploy destroy disable drop edit enable erase exec "
        "execute expunge flush insert install kill modify move overwrite prune publish purge put reboot "
        "remove rename replace reset restart restore revert revoke rm rollback send shutdown stop submit "
        "terminate truncate uninstall unlink update upload upsert wipe write"
    )
)
"""Words that say, anywhere in a name, that a tool without annotations does more than read: `get_or_create_user`."""

_CHANGING_PHRASES = frozenset({("check", "in"), ("check", "off"), ("check", "out")})
"""First words that say something else together than the first of them."""


class _Part(BaseModel):
    """Base of the protocol's objects: camelCase in JSON; unknown fields are kept."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")


class CatalogTool(_Part):
    """A tool of an MCP server.

    Args:
        name: Name of the tool.
        title: Name for people, if the server gives one.
        description: What the tool does.
        input_schema: JSON schema of the arguments, complete, as the server gave it.
        output_schema: JSON schema of the structured content. None: the server gives none.
        annotations: Hints of the protocol, such as `readOnlyHint`.
    """

    name: str
    title: str | None = None
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = Field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """The words of the tool's name in lower case."""
        return words(self.name)

    @property
    def destructive(self) -> bool:
        """Whether a call may destroy or change data. See `why_destructive`."""
        return self.why_destructive is not None

    @property
    def why_destructive(self) -> str | None:
        """Why a call may destroy or change data. None: it does not.

        `readOnlyHint: true` and `destructiveHint: false` say that it does not. `destructiveHint: true` says that it
        does, and so does `readOnlyHint: false` alone, as in the MCP specification. Without these hints only a tool
        whose name says that it reads is harmless.
        """
        read_only, destructive = self.annotations.get("readOnlyHint"), self.annotations.get("destructiveHint")
        if read_only or destructive is False or (self.reads and not destructive):
            return None
        if read_only is False or destructive:
            return "its annotations say so"
        return f"it has no annotations, and its name does not say that it only reads: {self._changing()}"

    @property
    def reads(self) -> bool:
        """Whether the tool only reads, as `readOnlyHint` or, without it, its name says."""
        return bool(self.annotations.get("readOnlyHint", self._changing() is None))

    def _changing(self) -> str | None:
        """What in the name speaks against a tool that only reads. None: nothing does."""
        named = self.words
        if tuple(named[:2]) in _CHANGING_PHRASES:
            return f"{' '.join(named[:2])!r} changes something"
        if not named or named[0] not in READING_VERBS:
            return f"{named[0] if named else self.name!r} is no reading verb"
        changing = next((word for word in named if word in CHANGING_VERBS), None)
        return changing and f"it has the word {changing!r}"


def withheld(tools: Iterable[CatalogTool]) -> str:
    """Which of some tools may destroy something, and why, in words. Empty: none."""
    reasons = [f"{tool.name} ({tool.why_destructive})" for tool in tools if tool.destructive]
    return f"not called, as they may destroy something: {', '.join(reasons)}" if reasons else ""


class CatalogResource(_Part):
    """A resource of an MCP server.

    Args:
        uri: URI of the resource.
        name: Name of the resource.
        title: Name for people, if the server gives one.
        description: What the resource is.
        mime_type: MIME type of the content, if the server gives one.
        sample: The first SAMPLE characters of the content. None: the content is no text or was not read.
    """

    uri: str
    name: str = ""
    title: str | None = None
    description: str = ""
    mime_type: str | None = None
    sample: str | None = None


class ResourceTemplate(_Part):
    """A template of resource URIs.

    Args:
        uri_template: URI template (RFC 6570).
        name: Name of the template.
        title: Name for people, if the server gives one.
        description: What the resources are.
        mime_type: MIME type of all of them, if the server gives one.
    """

    uri_template: str
    name: str = ""
    title: str | None = None
    description: str = ""
    mime_type: str | None = None


class CatalogPrompt(_Part):
    """A prompt of an MCP server.

    Args:
        name: Name of the prompt.
        title: Name for people, if the server gives one.
        description: What the prompt is for.
        arguments: `name`, `description` and `required` of each argument.
    """

    name: str
    title: str | None = None
    description: str = ""
    arguments: list[dict[str, Any]] = Field(default_factory=list)


class Catalog(_Part):
    """What an MCP server offers.

    `model_dump_json(by_alias=True)` writes a catalog as JSON, and `model_validate_json` reads it again.

    Args:
        name: Name of the server.
        version: Version of the server.
        instructions: The server's instructions for models.
        tools: Its tools.
        resources: Its resources.
        templates: Its resource templates.
        prompts: Its prompts.
    """

    name: str = "unknown"
    version: str = ""
    instructions: str = ""
    tools: list[CatalogTool] = Field(default_factory=list)
    resources: list[CatalogResource] = Field(default_factory=list)
    templates: list[ResourceTemplate] = Field(default_factory=list)
    prompts: list[CatalogPrompt] = Field(default_factory=list)

    @classmethod
    def of_tools(cls, tools: Iterable[Any], **facts: Any) -> Self:
        """Makes a catalog of tools that were listed elsewhere.

        Args:
            tools: `mcp.types.Tool` objects of MCP SDK 1 or 2, or their JSON.
            **facts: Other fields of the catalog: `name`, `instructions` and so on.

        Raises:
            ConfigError: A tool is neither an object of the SDK nor its JSON.
        """
        return cls(tools=[CatalogTool.model_validate(_given(tool)) for tool in tools], **facts)

    def tool(self, name: str) -> CatalogTool:
        """The tool with a name.

        Raises:
            ConfigError: The server has no tool with this name.
        """
        for tool in self.tools:
            if tool.name == name:
                return tool
        raise ConfigError(f"{self.name} has no tool {name!r}; it has {', '.join(tool.name for tool in self.tools)}")

    def text(self) -> str:
        """The catalog as JSON for a prompt, without empty fields."""
        return self.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True)

    def parts(self, max_chars: int) -> Iterator[Catalog]:
        """Splits the catalog into parts, each with the server's name and instructions.

        Every entry is in exactly one part.

        Args:
            max_chars: Maximum number of characters of each part's `text()`. A larger entry gets a part of its own.
        """
        kinds = ("tools", "resources", "templates", "prompts")
        empty = self.model_copy(update={kind: [] for kind in kinds})
        part, size = empty, len(empty.text())
        for kind in kinds:
            for entry in getattr(self, kind):
                entry_json = entry.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True)
                more = len(entry_json) + len(kind) + 6  # the kind's key and the punctuation
                if part is not empty and size + more > max_chars:
                    yield part
                    part, size = empty, len(empty.text())
                part = part.model_copy(update={kind: [*getattr(part, kind), entry]})
                size += more
        yield part


async def read_catalog(server: Server | str | Sequence[str], **options: Any) -> Catalog:
    """Reads the catalog of a server, and samples of its first SAMPLED resources.

    Args:
        server: A connected server, or what `connect` takes.
        **options: Options of `connect`, if the server is not connected yet.

    Returns:
        The catalog. A resource that cannot be read has no sample.

    Raises:
        MCPError: The server cannot be used.
    """
    if not isinstance(server, Server):
        async with connect(server, **options) as connected:
            return await read_catalog(connected)
    resources = [CatalogResource.model_validate(resource) for resource in await server.listing("resources/list")]
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
        tools=[CatalogTool.model_validate(tool) for tool in await server.listing("tools/list")],
        resources=resources,
        templates=[
            ResourceTemplate.model_validate(template) for template in await server.listing("resources/templates/list")
        ],
        prompts=[CatalogPrompt.model_validate(prompt) for prompt in await server.listing("prompts/list")],
    )


def _given(tool: Any) -> dict[str, Any]:
    """A tool as JSON. Raises ConfigError if it is neither an object of the SDK nor its JSON."""
    fields = wire(tool) if isinstance(tool, BaseModel) else tool
    if not isinstance(fields, Mapping) or "name" not in fields:
        raise ConfigError(f"expected a tool of the MCP SDK or its JSON, found {type(tool).__name__}: {tool!r:.100}")
    # Nulls of optional fields have no meaning, but nulls inside schemas do: only the outer ones are removed.
    return {key: value for key, value in fields.items() if value is not None}
