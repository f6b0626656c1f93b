"""The catalog of an MCP server: tools, resources and prompts, with complete schemas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from art_mcp.client.connect import Server, connect
from art_mcp.client.connection.sdk import wire
from art_mcp.client.connection.tool_filter import name_of, unreadable
from art_mcp.client.effects import why_changing, words
from art_mcp.input_schema import BY_NAME, normal_schema
from trainer_server.wire import ConfigError, MCPError

MAX_SAMPLES = 20
"""Maximum number of resources whose content is read."""

SAMPLE = 2_000
"""Maximum number of characters of a resource that are kept."""


Form = Literal["text", "json", "choice"]
"""How a table gives the values of a parameter: one on each line, or as JSON. The schema has those of a choice."""


class _Part(BaseModel):
    """Base of the protocol's objects: camelCase in JSON; unknown fields are kept."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")


class CatalogTool(_Part):
    """A tool of an MCP server.

    Args:
        name: Name of the tool.
        title: Name for people, if the server gives one.
        description: What the tool does.
        input_schema: JSON schema of the arguments, complete. What it leaves open has one form: see `normal_schema`.
        output_schema: JSON schema of the structured content, in the same form. None: the server gives none.
        annotations: Hints of the protocol, such as `readOnlyHint`.
    """

    name: str
    title: str | None = None
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = Field(default_factory=dict)

    @field_validator("input_schema", "output_schema", mode="before")
    @classmethod
    def _in_one_form(cls, schema: Any) -> Any:
        return normal_schema(schema) if isinstance(schema, Mapping) else schema

    @property
    def words(self) -> list[str]:
        """The words of the tool's name in lower case."""
        return words(self.name)

    @property
    def reads(self) -> bool:
        """Whether the tool only reads, as its annotations or else its name and description say."""
        return self.why_changing is None

    @property
    def why_changing(self) -> str | None:
        """Why a call may change or destroy something. None: the tool only reads. See `effects.why_changing`."""
        return why_changing(self.name, self.description, self.annotations)


def describe_withheld(tools: Iterable[CatalogTool]) -> str:
    """Which of some tools may change something, and why, in words. Empty: none."""
    reasons = [f"{tool.name} ({tool.why_changing})" for tool in tools if not tool.reads]
    return f"not called, as they may change something: {', '.join(reasons)}" if reasons else ""


REMEDY = (
    "--world PATH (worlds=), with {world} for that path in the server's command, gives each run a copy of what the "
    "server works on; an empty directory is enough if it only computes; --reset (reset=) resets the server before each "
    "run, and then all tools are called; --allow-destructive (allow_destructive=True) calls them as it is"
)
"""What to do about tools that are withheld."""


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
        left_out: The tools that cannot be read, by name, and why.
    """

    name: str = "unknown"
    version: str = ""
    instructions: str = ""
    tools: list[CatalogTool] = Field(default_factory=list)
    resources: list[CatalogResource] = Field(default_factory=list)
    templates: list[ResourceTemplate] = Field(default_factory=list)
    prompts: list[CatalogPrompt] = Field(default_factory=list)
    left_out: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def of_tools(cls, tools: Iterable[Any], **facts: Any) -> Self:
        """Makes a catalog of tools that were listed elsewhere. Those that cannot be read are in `left_out`.

        Args:
            tools: `mcp.types.Tool` objects of MCP SDK 1 or 2, or their JSON.
            **facts: Other fields of the catalog: `name`, `instructions` and so on.

        Raises:
            ConfigError: A tool is neither an object of the SDK nor its JSON.
        """
        entries = [_tool_fields(tool) for tool in tools]
        reasons = {id(tool): reason for tool in entries if (reason := unreadable(tool))}
        return cls(
            tools=[CatalogTool.model_validate(tool) for tool in entries if id(tool) not in reasons],
            left_out={name_of(tool, at): reasons[id(tool)] for at, tool in enumerate(entries) if id(tool) in reasons},
            **facts,
        )

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
        return self.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True, exclude={"left_out"})

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
    """Reads the catalog of a server, and samples of its first MAX_SAMPLES resources.

    Args:
        server: A connected server, or what `connect` takes.
        **options: Options of `connect`, if the server is not connected yet.

    Returns:
        The catalog. A resource that cannot be read has no sample.

    Raises:
        MCPError: The server cannot be used.
    """
    if not isinstance(server, Server):
        async with connect(server, **options) as live:
            return await read_catalog(live)
    resources = [CatalogResource.model_validate(resource) for resource in await server.listing("resources/list")]
    for resource in resources[:MAX_SAMPLES]:
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
        left_out=server.left_out,
        resources=resources,
        templates=[
            ResourceTemplate.model_validate(template) for template in await server.listing("resources/templates/list")
        ],
        prompts=[CatalogPrompt.model_validate(prompt) for prompt in await server.listing("prompts/list")],
    )


def _tool_fields(tool: Any) -> dict[str, Any]:
    """A tool as JSON. Raises ConfigError if it is neither an object of the SDK nor its JSON."""
    fields = wire(tool) if isinstance(tool, BaseModel) else tool
    if not isinstance(fields, Mapping) or "name" not in fields:
        raise ConfigError(f"expected a tool of the MCP SDK or its JSON, found {type(tool).__name__}: {tool!r:.100}")
    # Nulls of optional fields have no meaning, but nulls inside schemas do: only the outer ones are removed.
    return {key: value for key, value in fields.items() if value is not None}


def properties_of(tool: CatalogTool) -> dict[str, Any]:
    """The schemas of a tool's parameters by name."""
    return dict(tool.input_schema.get("properties") or {})


def parameter_forms(tool: CatalogTool) -> dict[str, Form]:
    """The parameters of a tool whose values can vary, and how a table gives their values.

    Required ones of which the schema tells no value come first: there a table helps most.
    """
    forms: dict[str, Form] = {}
    order: dict[str, tuple[bool, bool]] = {}
    required = set(tool.input_schema.get("required", ()))
    for name, given in properties_of(tool).items():
        schema = plain(given, tool.input_schema) if isinstance(given, Mapping) else {}
        choices = schema.get("enum")
        if "const" in schema or (isinstance(choices, list) and len(choices) == 1):
            continue
        kind = schema.get("type")
        is_choice = isinstance(choices, list) or kind == "boolean"
        forms[name] = "choice" if is_choice else "text" if kind in ("string", None) else "json"
        order[name] = (is_choice or "default" in schema, name not in required)
    return {name: forms[name] for name in sorted(forms, key=order.__getitem__)}


def plain(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolves references, unions and lists of types in a schema; takes the first alternative that is not null.

    Args:
        schema: The schema.
        whole: The schema that has the definitions.
    """
    for _ in range(10):  # a limit for references that lead to each other
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.partition("/")[0] == "#":
            target: Any = whole
            steps = reference.split("/")[1:]
            for key in steps:
                target = target.get(key, {}) if isinstance(target, Mapping) else {}
            if steps and not (len(steps) == 2 and steps[0] in BY_NAME):  # where a catalog expects no schema
                target = normal_schema(target)
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
            continue
        options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        options = [each for each in options if isinstance(each, Mapping)] if isinstance(options, list) else []
        if options:
            alternative = next((option for option in options if option.get("type") != "null"), options[0])
            rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "allOf")}
            schema = {**rest, **alternative}
            continue
        break
    if isinstance(schema.get("type"), list):
        schema = {**schema, "type": next((kind for kind in schema["type"] if kind != "null"), "string")}
    return schema
