"""Traces for an OpenTelemetry collector: a span for each request, and one for each of its stages. No text, no query.

This module imports OpenTelemetry, which is an extra (`pip install 'lengnuan[tracing]'`); nothing imports this module
unless `otlp_endpoint` is set. The SDK's own variables hold: OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER,
OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_HEADERS.
"""

import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lengnuan.service.access import QUIET_ROUTES
from lengnuan.service.metrics import METHODS
from lengnuan.service.stages import Stage, noted_stages

# A stream has three stages for every few hundred lines.
MAX_STAGES = 60
EXPORT_TIMEOUT_S = 3.0
PARENT = "traceparent"  # its companion, tracestate, may hold anything


def open_provider(endpoint: str) -> TracerProvider:
    """What collects spans and sends them to `endpoint` from a thread of its own; `shutdown` sends what is left.

    When the collector is slow or away, spans are dropped and requests don't notice.
    """
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT_S)
    resource = Resource({SERVICE_NAME: "lengnuan"}).merge(Resource.create())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Tracing:
    """Outside of `Access`, whose findings it reads once a request has ended. Pure ASGI."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and make its spans afterwards; let all else and what orchestrators ask for through."""
        if scope["type"] != "http" or scope["path"] in QUIET_ROUTES:
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        stages: list[Stage] = []
        token = noted_stages.set(stages)
        began = time.monotonic()
        try:
            await self._app(scope, receive, send)
        finally:
            noted_stages.reset(token)
            if "status" in state:
                self._make_spans(scope, stages, began)

    def _make_spans(self, scope: Scope, stages: Sequence[Stage], began: float) -> None:
        state, now = scope["state"], time.monotonic()
        epoch_ns = time.time_ns() - int(now * 1e9)  # when time.monotonic() was 0

        def ns(moment: float) -> int:
            return epoch_ns + int(moment * 1e9)

        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        attributes: dict[str, str | int] = {
            "http.request.method": method,
            "http.route": state["route"],
            "http.response.status_code": state["status"],
            "lengnuan.request_id": state["request_id"],
        }
        attributes |= {f"lengnuan.{name}": state[name] for name in ("items", "code") if name in state}
        if "key" in state:
            attributes["lengnuan.key"] = state["key"].name
        parent = Headers(scope=scope).get(PARENT)
        context = TraceContextTextMapPropagator().extract({PARENT: parent} if parent else {})
        span = self._tracer.start_span(
            f"{method} {state['route']}", context, SpanKind.SERVER, attributes, start_time=ns(began)
        )
        if state["status"] >= 500:
            span.set_status(StatusCode.ERROR)
        for stage in stages[:MAX_STAGES]:
            numbers = {f"lengnuan.{name}": number for name, number in stage.numbers.items()}
            inner = self._tracer.start_span(
                stage.name, set_span_in_context(span), attributes=numbers, start_time=ns(stage.began)
            )
            inner.end(ns(stage.ended))
        span.end(ns(now))
