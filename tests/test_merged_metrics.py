"""The metrics of several processes as those of one."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from lengnuan.service.metrics import Metrics
from lengnuan.service.processes.merged import lasting, merge, render, snapshot


def registry(requests: int, in_flight: int, seconds: float, stale: int) -> CollectorRegistry:
    made = CollectorRegistry()
    counter = Counter("requests", "Requests.", ["route"], registry=made)
    counter.labels("/a").inc(requests)
    if stale:
        counter.labels("/only here").inc()
    Gauge("in_flight", "Now.", registry=made).set(in_flight)
    Gauge("keys_stale", "1 when old.", registry=made).set(stale)
    Histogram("seconds", "Time.", buckets=(1.0, 2.0), registry=made).observe(seconds)
    Gauge("process_start_time_seconds", "Since when.", registry=made).set(100 + requests)
    return made


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(text.decode())
    return {(s.name, tuple(s.labels.items())): s.value for family in families for s in family.samples}


def test_counters_histograms_and_gauges_are_added_up_but_for_those_that_are_no_sums() -> None:
    found = samples(render(merge([snapshot(registry(3, 1, 0.5, 0)), snapshot(registry(4, 2, 1.5, 1))])))
    assert found["requests_total", (("route", "/a"),)] == 7
    assert found["requests_total", (("route", "/only here"),)] == 1
    assert found["in_flight", ()] == 3
    assert found["keys_stale", ()] == 1
    assert found["process_start_time_seconds", ()] == 103
    assert [found["seconds_bucket", (("le", edge),)] for edge in ("1.0", "2.0", "+Inf")] == [1, 2, 2]
    assert (found["seconds_count", ()], found["seconds_sum", ()]) == (2, 2.0)


def test_one_process_alone_is_rendered_as_it_renders_itself() -> None:
    metrics = Metrics()
    metrics.observe_http("/v1/classify", "POST", 200, 0.02)
    metrics.default.items["ok"].inc(3)
    ours, theirs = samples(render(merge([snapshot(metrics.registry)]))), samples(metrics.render())
    assert ours.keys() == theirs.keys()
    assert {
        key for key, value in theirs.items() if ours[key] != value and not key[0].startswith(("process_", "python_"))
    } == set()


def test_of_a_process_that_is_gone_only_what_it_counted_stays() -> None:
    left = lasting(snapshot(registry(3, 1, 0.5, 1)))
    assert {name for name, *_ in left} == {"requests", "seconds"}
    of_a_process = lasting(snapshot(Metrics().registry))
    assert "process_cpu_seconds" in {name for name, *_ in of_a_process}  # their sum is not to fall either
    found = samples(render(merge([left, snapshot(registry(1, 0, 0.5, 0))])))
    assert found["requests_total", (("route", "/a"),)] == 4
    assert found["keys_stale", ()] == 0


def test_a_snapshot_can_be_merged_again() -> None:
    once = merge([snapshot(registry(1, 1, 0.5, 0)), snapshot(registry(2, 1, 0.5, 0))])
    found = samples(render(merge([once, snapshot(registry(4, 1, 0.5, 0))])))
    assert found["requests_total", (("route", "/a"),)] == 7
