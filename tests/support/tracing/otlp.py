"""A collector of OpenTelemetry that keeps what it is sent: OTLP over HTTP, on a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.servers.serving import serving


@dataclass(frozen=True, slots=True)
class Received:
    """A span."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    start: float
    end: float
    attributes: dict[str, Any]
    links: list[str]
    events: list[str]
    failed: bool


@dataclass(slots=True)
class Collector:
    """What was sent to it."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)

    def named(self, name: str) -> list[Received]:
        """The spans of a name, oldest first."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start)

    def above(self, span: Received) -> list[str]:
        """The names of the spans that a span is in, from the outermost inwards."""
        known = {one.id: one for one in self.spans}
        names: list[str] = []
        while (parent := known.get(span.parent)) is not None:
            names.insert(0, parent.name)
            span = parent
        return names


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector while the context is open."""
    found = Collector()

    async def take(request: Request) -> Response:
        sent = ExportTraceServiceRequest.FromString(await request.body())
        for resource in sent.resource_spans:
            service = _values(resource.resource.attributes).get("service.name", "")
            found.spans += [_span(one, service) for scope in resource.scope_spans for one in scope.spans]
        return Response(b"", media_type="application/x-protobuf")

    with serving(Starlette(routes=[Route("/v1/traces", take, methods=["POST"])])) as url:
        found.url = url
        yield found


def _span(one: Any, service: str) -> Received:
    return Received(
        service=service,
        name=one.name,
        kind=one.kind,
        trace=one.trace_id.hex(),
        id=one.span_id.hex(),
        parent=one.parent_span_id.hex(),
        start=one.start_time_unix_nano / 1e9,
        end=one.end_time_unix_nano / 1e9,
        attributes=_values(one.attributes),
        links=[link.span_id.hex() for link in one.links],
        events=[event.name for event in one.events],
        failed=one.status.code == 2,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    given = getattr(value, kind)
    return [_value(one) for one in given.values] if kind == "array_value" else given
