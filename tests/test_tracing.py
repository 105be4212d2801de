"""Spans as a collector gets them: a real one, as far as HTTP and the protocol's messages go."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from collector import Collector, closed_endpoint, running_collector
from keys_file import bearer, entry, write_keys
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from service_fixtures import STRANGE, STRANGE_ID, FakeEngine, async_test, serving

from lengnuan.service.settings import Settings, SettingsRefused

URL = "/v1/classify"
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as found:
        yield found


def numbers(span: Span) -> dict[str, str | int]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}


@async_test
async def classify(folder: Path, collector: Collector, text: str, headers: dict[str, str]) -> None:
    keys_file = write_keys(folder, entry("shop", "ln_shop"))
    settings = {"otlp_endpoint": collector.endpoint, "keys_file": keys_file}
    async with serving(folder, FakeEngine(nan=STRANGE_ID), **settings) as (client, _):
        await client.post(URL, json={"input": ["好", text]}, headers={**bearer("ln_shop"), **headers})


def test_a_request_is_a_span_with_its_stages_inside_in_their_order(tmp_path: Path, collector: Collector) -> None:
    classify(tmp_path, collector, "好看", {"X-Request-Id": "q1"})
    whole = collector.span(f"POST {URL}")
    stages = [collector.span(name) for name in ("tokenize", "queue", "infer")]
    assert len(collector.spans) == 4
    assert {stage.parent_span_id for stage in stages} == {whole.span_id}
    assert {stage.trace_id for stage in stages} == {whole.trace_id}
    moments = [moment for stage in stages for moment in (stage.start_time_unix_nano, stage.end_time_unix_nano)]
    moments = [whole.start_time_unix_nano, *moments, whole.end_time_unix_nano]
    assert all(b - a > -20_000 for a, b in itertools.pairwise(moments)), moments
    assert numbers(whole) == {
        **{"http.request.method": "POST", "http.route": URL, "http.response.status_code": 200},
        **{"lengnuan.request_id": "q1", "lengnuan.items": 2, "lengnuan.key": "shop"},
    }
    assert numbers(stages[0]) == {"lengnuan.texts": 2, "lengnuan.tokens": 2}
    assert numbers(stages[2]) == {"lengnuan.rows": 2}
    assert {path for path, _ in collector.requests} == {"/v1/traces"}


@pytest.mark.parametrize(
    ("sent", "followed"),
    [
        (f"00-{TRACE_ID}-{PARENT_ID}-01", True),
        ("00-nonsense-01", False),
    ],
)
def test_the_caller_s_trace_goes_on(tmp_path: Path, collector: Collector, sent: str, followed: bool) -> None:
    classify(tmp_path, collector, "好看", {"traceparent": sent, "tracestate": "a=b"})
    whole = collector.span(f"POST {URL}")
    assert (whole.trace_id.hex() == TRACE_ID) == followed
    assert (whole.parent_span_id.hex() == PARENT_ID) == followed
    assert whole.trace_state == ""


def test_a_trace_that_its_caller_does_not_record_is_not_recorded_here(tmp_path: Path, collector: Collector) -> None:
    classify(tmp_path, collector, "好看", {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"})
    assert collector.spans == []


def test_a_failure_is_an_error_with_its_code(tmp_path: Path, collector: Collector) -> None:
    classify(tmp_path, collector, STRANGE, {})
    whole = collector.span(f"POST {URL}")
    assert whole.status.code == whole.status.STATUS_CODE_ERROR
    assert numbers(whole)["lengnuan.code"] == "engine_failed"


@async_test
async def test_a_collector_that_is_away_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengnuan.service.tracing.EXPORT_TIMEOUT_S", 0.1)
    async with serving(tmp_path, otlp_endpoint=closed_endpoint()) as (client, _):
        statuses = [(await client.post(URL, json={"input": "好"})).status_code for _ in range(3)]
    assert statuses == [200] * 3


def test_probes_make_no_spans(tmp_path: Path, collector: Collector) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path, otlp_endpoint=collector.endpoint) as (client, _):
            for path in ("/livez", "/readyz", "/startupz", "/metrics"):
                await client.get(path)

    run()
    assert collector.spans == []


def test_a_long_stream_has_a_bounded_number_of_spans(tmp_path: Path, collector: Collector) -> None:
    @async_test
    async def run() -> None:
        headers = {"Content-Type": "application/x-ndjson"}
        async with serving(tmp_path, otlp_endpoint=collector.endpoint) as (client, _):
            await client.post("/v1/classify/stream", content='{"input": "好"}\n' * 256 * 30, headers=headers)

    run()
    assert len(collector.spans) == 61


def test_off_nothing_of_opentelemetry_s_sdk_is_imported() -> None:
    code = (
        "import sys; from lengnuan.service.app import create_app; from lengnuan.service.settings import Settings; "
        "create_app(Settings()); sys.stdout.write(' '.join(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # FastAPI itself brings the interface, opentelemetry-api.
    loaded = [name for name in run.stdout.split() if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
    assert "fastapi" in run.stdout
    assert loaded == []


def test_the_framework_s_own_telemetry_can_t_be_switched_on_from_outside(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would send queries, bodies that don't fit, and the messages of exceptions."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    provider = TracerProvider()
    kept = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)

    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            await client.get("/v1/models?text=秘密")

    run()
    assert kept.get_finished_spans() == ()
    assert collector.requests == []


@pytest.mark.parametrize("endpoint", ["otel:4318", "http://user:secret@otel:4318", "ftp://otel", "http://"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(SettingsRefused, match="LENGNUAN_OTLP_ENDPOINT"):
        Settings.from_command_line(["--otlp-endpoint", endpoint])


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from lengnuan.service.app import create_app

    monkeypatch.setitem(sys.modules, "lengnuan.service.tracing", None)
    with pytest.raises(SettingsRefused, match=r"pip install 'lengnuan\[tracing\]'"):
        create_app(Settings(otlp_endpoint="http://otel:4318"))
