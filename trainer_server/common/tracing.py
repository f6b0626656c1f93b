"""Traces in OpenTelemetry's terms, with the GenAI semantic conventions. Off unless the environment asks for them.

While they are off, nothing of OpenTelemetry is imported, and each call here returns at once. They are on with
`ART_OTEL=1`, or where one of OpenTelemetry's own variables names an exporter (VARIABLES). `ART_OTEL=0` turns them off.
Spans go to the tracer provider that the program has set up, else by OTLP over HTTP to where the variables say.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from trainer_server.wire.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer, TracerProvider

log = logging.getLogger("art_langgraph")

SWITCH = "ART_OTEL"
"""The environment variable that turns traces on (`1`) or off (`0`)."""
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
"""Variables of OpenTelemetry that ask for traces."""
TRACEPARENT = "traceparent"
"""The header of the W3C that joins the spans of several processes to one trace."""
INSTALL = "pip install 'art-langgraph[otel]'"

Kind = Literal["internal", "client", "server", "producer", "consumer"]
Attributes = Mapping[str, Any]
"""By name. None and empty texts are left out."""


class Span:
    """A span. This class does nothing: its one instance, NOTHING, stands for all spans while traces are off."""

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""

    def rename(self, name: str) -> None:
        """Gives it another name, which was not known when it began."""

    def fail(self, error: BaseException | str) -> None:
        """Marks it as failed.

        Args:
            error: What was raised, or `kind: message`.
        """

    def event(self, name: str, attributes: Attributes) -> None:
        """Adds an event, at the time of the call."""

    def end(self, at: float | None = None) -> None:
        """Ends the span. Later changes are lost.

        Args:
            at: When it ended, Unix time; None: now.
        """

    @property
    def parent(self) -> str | None:
        """The value of `traceparent` for what it causes; None: traces are off."""
        return None


NOTHING = Span()
"""What `begin` returns while traces are off."""


class _SDKSpan(Span):
    """A span of the SDK."""

    def __init__(self, span: Any) -> None:
        self.span = span

    def set(self, attributes: Attributes) -> None:
        self.span.set_attributes(_drop_empty(attributes))

    def rename(self, name: str) -> None:
        self.span.update_name(name)

    def fail(self, error: BaseException | str) -> None:
        from opentelemetry.trace import Status, StatusCode

        kind = type(error).__name__ if isinstance(error, BaseException) else error.partition(":")[0]
        self.span.set_attribute("error.type", kind)
        self.span.set_status(Status(StatusCode.ERROR, str(error)[:500]))

    def event(self, name: str, attributes: Attributes) -> None:
        self.span.add_event(name, _drop_empty(attributes))

    def end(self, at: float | None = None) -> None:
        self.span.end(_nanoseconds(at))

    @property
    def parent(self) -> str | None:
        from opentelemetry.trace import set_span_in_context

        return _inject_headers(set_span_in_context(self.span)).get(TRACEPARENT)


_lock = threading.Lock()
_is_decided = False
_tracer: Tracer | None = None
_provider: Any = None
"""The tracer provider that was made here."""
_call: ContextVar[Span | None] = ContextVar("art_model_call", default=None)
"""The model call that is under way, where it is not in OpenTelemetry's own context: a callback cannot enter one for its
caller."""


def on(service: str = "art-langgraph") -> bool:
    """Whether traces are on. The first call decides it, for the life of the process.

    Args:
        service: `service.name` of the spans, where OTEL_SERVICE_NAME does not say it.

    Raises:
        ConfigError: The environment asks for traces in a way that cannot be followed.
    """
    if not _is_decided:
        _decide(service)
    return _tracer is not None


def use(provider: TracerProvider | None) -> None:
    """Sends spans to a tracer provider from now on; None: to none, and traces are off."""
    global _is_decided, _tracer
    with _lock:
        _is_decided, _tracer = True, None if provider is None else provider.get_tracer("art_langgraph")


def flush() -> None:
    """Waits until the spans that have ended are sent. Does nothing for a provider that the program has set up."""
    if _provider is not None:
        _provider.force_flush()


def begin(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: Kind = "internal",
    parent: str | None = None,
    links: Sequence[str | None] = (),
    at: float | None = None,
) -> Span:
    """Begins a span, which its caller ends. It is not the parent of what follows; see `within`.

    Args:
        name: What lasts.
        attributes: Its attributes.
        kind: Its side of a call.
        parent: A value of `traceparent`; None: the span that is current here.
        links: Values of `traceparent` of spans that it has to do with, besides its parent.
        at: When it began, Unix time; None: now.
    """
    if not on() or _tracer is None:
        return NOTHING
    from opentelemetry import trace

    span_links = [trace.Link(context) for link in links if (context := _span_context(link)) is not None]
    span = _tracer.start_span(
        name,
        context=None if parent is None else _extract_context(parent),
        kind=trace.SpanKind[kind.upper()],
        attributes=_drop_empty(attributes or {}),
        links=span_links,
        start_time=_nanoseconds(at),
    )
    return _SDKSpan(span)


def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: Kind = "internal",
    parent: str | None = None,
    links: Sequence[str | None] = (),
) -> AbstractContextManager[Span]:
    """A span that lasts as long as the context is open, and is the parent of what happens in it. What is raised fails
    it. The arguments are those of `begin`."""
    if not on():
        return nullcontext(NOTHING)
    return _lasting(begin(name, attributes, kind=kind, parent=parent, links=links))


@contextmanager
def _lasting(span: Span) -> Iterator[Span]:
    try:
        with within(span):
            yield span
    except BaseException as error:
        span.fail(error)
        raise
    finally:
        span.end()


def within(span: Span) -> AbstractContextManager[object]:
    """Makes a span the parent of what begins while the context is open. It does not end with it."""
    if not isinstance(span, _SDKSpan):
        return nullcontext()
    from opentelemetry.trace import use_span

    return use_span(span.span, end_on_exit=False, record_exception=False, set_status_on_exception=False)


def calling(span: Span) -> None:
    """Makes a model call's span the one that `headers` names, until it has ended."""
    if span is not NOTHING:
        _call.set(span)


def headers() -> dict[str, str]:
    """The headers that join a request to a trainer server to the current span; empty while traces are off."""
    if not on():
        return {}
    model_call = _call.get()
    if isinstance(model_call, _SDKSpan) and model_call.span.is_recording():
        return {} if (parent := model_call.parent) is None else {TRACEPARENT: parent}
    return _inject_headers(None)


def current() -> str | None:
    """The value of `traceparent` of the span that is current here; None: there is none."""
    return headers().get(TRACEPARENT)


def ids() -> dict[str, str]:
    """`trace_id` and `span_id` of the span that is current here, for lines of a log; empty: there is none."""
    parts = (current() or "").split("-")
    return {"trace_id": parts[1], "span_id": parts[2]} if len(parts) == 4 else {}


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for traces."""
    if (switch := environment.get(SWITCH, "")) in ("0", "1"):
        return switch == "1"
    if switch:
        raise ConfigError(f"{SWITCH}={switch}: give 1 to turn traces on, or 0 to turn them off")
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(environment.get(name) for name in VARIABLES)


def _decide(service: str) -> None:
    global _is_decided, _tracer, _provider
    with _lock:
        if _is_decided:
            return
        if wanted():
            try:
                provider = _set_up(service)
            except ImportError as error:
                message = f"traces are asked for, and OpenTelemetry is not installed ({error.name}): {INSTALL}"
                if os.environ.get(SWITCH) == "1":
                    raise ConfigError(message) from None
                log.warning("%s; %s=0 silences this", message, SWITCH)
            else:
                _tracer = provider.get_tracer("art_langgraph")
        _is_decided = True


def _set_up(service: str) -> TracerProvider:
    """The provider of the program, or else one made by the variables of OpenTelemetry."""
    global _provider
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider as SDKProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    if isinstance(existing := trace.get_tracer_provider(), SDKProvider):
        return existing
    exporter: SpanExporter
    if os.environ.get("OTEL_TRACES_EXPORTER") == "console":
        exporter = ConsoleSpanExporter()
    else:
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        if protocol not in (None, "", "http/protobuf"):
            raise ConfigError(
                f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: traces are sent as http/protobuf. Set that, with the "
                "collector's HTTP port (4318), or set up a tracer provider in the program"
            )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    resource = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
    _provider = SDKProvider(resource=Resource.create(resource))
    _provider.add_span_processor(BatchSpanProcessor(exporter))
    provider: TracerProvider = _provider
    return provider


def _drop_empty(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None and value != ""}


def _nanoseconds(at: float | None) -> int | None:
    return None if at is None else int(at * 1e9)


def _inject_headers(context: Context | None) -> dict[str, str]:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, context)
    return {name: value for name, value in carrier.items() if name == TRACEPARENT}


def _extract_context(parent: str) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({TRACEPARENT: parent}, Context())


def _span_context(link: str | None) -> Any:
    from opentelemetry import trace

    if link is None:
        return None
    context = trace.get_current_span(_extract_context(link)).get_span_context()
    return context if context.is_valid else None
