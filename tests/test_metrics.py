"""What is measured: every text once, every request by route, and nothing of a caller."""

import asyncio
import re
from pathlib import Path

import pytest
from service_fixtures import STRANGE, STRANGE_ID, FakeEngine, async_test, eventually, serving, value

from lengnuan.service.errors import Overloaded
from lengnuan.service.metrics import CONTENT_TYPE, Metrics, ModelMetrics

URL = "/v1/classify"
OUTCOMES = ("ok", "truncated_ok", "invalid", "too_long", "shed", "expired", "cancelled", "failed")


def outcomes(metrics: Metrics | ModelMetrics) -> dict[str, float]:
    return {name: value(metrics.registry, "items_total", outcome=name) for name in OUTCOMES}


def test_two_apps_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.default.items_received.inc()
    assert value(second.registry, "items_received_total") == 0


def test_names_have_the_prefix_and_counters_end_in_total() -> None:
    for family in Metrics().registry.collect():
        assert family.name.startswith(("lengnuan_", "process_", "python_gc_"))
        if family.type == "counter":
            assert all(sample.name.endswith(("_total", "_created")) for sample in family.samples)


def test_items_get_the_outcome_of_the_error_that_ended_them() -> None:
    metrics = Metrics().default
    with pytest.raises(Overloaded), metrics.count_items(3):
        raise Overloaded("full", retry_after_s=1, limit=1, actual=2)
    assert outcomes(metrics)["shed"] == 3


def test_items_of_a_cancelled_block_are_cancelled() -> None:
    metrics = Metrics().default
    with pytest.raises(asyncio.CancelledError), metrics.count_items(2):
        raise asyncio.CancelledError
    assert outcomes(metrics)["cancelled"] == 2


def test_items_of_a_mistake_failed() -> None:
    metrics = Metrics().default
    with pytest.raises(ZeroDivisionError), metrics.count_items(2):
        raise ZeroDivisionError
    assert outcomes(metrics)["failed"] == 2


@async_test
async def test_every_text_ends_once_after_a_mixed_run(tmp_path: Path) -> None:
    engine = FakeEngine(nan=STRANGE_ID)
    async with serving(tmp_path, engine, max_texts=4, queue_items=4) as (client, app):
        metrics: Metrics = app.state.metrics
        await client.post(URL, json={"input": ["好", "很好看不" * 5, "", STRANGE], "partial": True})
        await client.post(URL, json={"input": ["好", "很好看不" * 5], "on_long": "error"})
        engine.entered.clear()
        engine.gate.clear()
        running = asyncio.create_task(client.post(URL, json={"input": "好"}))
        await engine.wait_entered()
        await client.post(URL, json={"input": ["好", "差"], "timeout_ms": 20})
        queued = asyncio.create_task(client.post(URL, json={"input": ["好"] * 4}))
        await eventually(lambda: value(metrics.registry, "queue_items") == 4)
        assert value(metrics.registry, "items_in_flight") == 5
        await client.post(URL, json={"input": ["差", "差", "差"]})
        queued.cancel()
        await asyncio.wait([queued])
        engine.gate.set()
        await running
    expected = {"ok": 2, "truncated_ok": 1, "invalid": 1, "too_long": 2, "shed": 3, "expired": 2}
    assert outcomes(metrics) == {**expected, "cancelled": 4, "failed": 1}
    assert value(metrics.registry, "items_received_total") == sum(outcomes(metrics).values())
    for gauge in ("items_in_flight", "http_requests_in_flight", "queue_items", "queue_tokens"):
        assert value(metrics.registry, gauge) == 0


@async_test
async def test_answers_batches_and_model_are_measured(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, app):
        data = (await client.post(URL, json={"input": ["好", "很好看不" * 5, STRANGE]})).json()["data"]
        registry = app.state.metrics.registry
        labels = {label: [item["label"] for item in data].count(label) for label in ("negative", "positive")}
        assert {label: value(registry, "predictions_total", label=label) for label in labels} == labels
        for histogram in ("prediction_confidence", "input_tokens", "input_chars", "unknown_token_ratio"):
            assert value(registry, f"{histogram}_count") == 3
        assert value(registry, "truncated_items_total") == 1
        assert value(registry, "batch_rows_sum") == 3
        for priority in ("interactive", "bulk"):
            assert value(registry, "queue_limit_items", priority=priority) == 4096
            assert value(registry, "queue_limit_seconds", priority=priority) == 5
        assert value(registry, "batch_limit_tokens") == 1024
        for stage in ("tokenize", "queue", "infer", "postprocess"):
            assert value(registry, "stage_duration_seconds_count", stage=stage) > 0
        page = (await client.get("/metrics")).text
    (info,) = re.findall(r"^lengnuan_model_info\{(.*)\} 1\.0$", page, re.MULTILINE)
    for part in (
        'model="default"',
        'name="tiny"',
        'backend="fake"',
        'provider="cpu"',
        'precision="float32"',
        'tolerance="0.0001"',
    ):
        assert part in info


@async_test
async def test_scrape_has_the_exposition_content_type(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        assert (await client.get("/metrics")).headers["Content-Type"] == CONTENT_TYPE


@async_test
async def test_random_paths_and_methods_make_one_series(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, app):
        for number in range(100):
            await client.get(f"/{number}/好")
            await client.request(f"METHOD{number}", "/nowhere")
        await client.post(URL, json={"input": "好"})
        page = (await client.get("/metrics")).text
        registry = app.state.metrics.registry
        assert value(registry, "http_requests_total", route="unmatched", method="GET", status="404") == 100
        assert value(registry, "http_requests_total", route="unmatched", method="other", status="404") == 100
        assert value(registry, "http_requests_total", route=URL, method="POST", status="200") == 1
    assert len([line for line in page.splitlines() if line.startswith("lengnuan_http_requests_total")]) == 3


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/openapi.json", "/openapi.json"),
        ("/docs", "/docs"),
        ("/static-offline-docs/swagger-ui.css", "/static-offline-docs"),
    ],
)
def test_the_documentation_has_routes_of_its_own(tmp_path: Path, path: str, route: str) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, app):
            assert (await client.get(path)).status_code == 200
            counted = value(app.state.metrics.registry, "http_requests_total", route=route, method="GET", status="200")
        assert counted == 1

    run()


@async_test
async def test_a_head_request_is_counted_as_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, app):
        await client.head("/livez")
        registry = app.state.metrics.registry
        assert value(registry, "http_requests_total", route="/livez", method="HEAD", status="200") == 1


@async_test
async def test_the_age_of_the_oldest_text_is_read_at_the_scrape(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, app):
        registry = app.state.metrics.registry
        engine.gate.clear()
        running = asyncio.create_task(client.post(URL, json={"input": "好"}))
        await engine.wait_entered()
        queued = asyncio.create_task(client.post(URL, json={"input": "差"}))
        await eventually(lambda: value(registry, "queue_oldest_seconds") > 0)
        engine.gate.set()
        await asyncio.gather(running, queued)
        assert value(registry, "queue_oldest_seconds") == 0
