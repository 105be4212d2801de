"""The metrics of several processes as those of one: what a scrape gets, whichever process it reaches."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

# A family as JSON has it: name, help, type, and its samples with name, labels and value.
Family = list[Any]
# Samples that are no sums. All else is: a gauge that only one process sets is 0 in the others.
SMALLEST = ("_created", "process_start_time_seconds")
LARGEST = ("process_max_fds", "keys_stale")
LASTING = frozenset({"counter", "histogram"})


def snapshot(registry: CollectorRegistry) -> list[Family]:
    """All that a registry has now."""
    return [
        [family.name, family.documentation, family.type, [[s.name, s.labels, s.value] for s in family.samples]]
        for family in registry.collect()
    ]


def lasting(families: Iterable[Family]) -> list[Family]:
    """What stays of a process that has ended: what it had counted, or a sum over all would fall."""
    return [
        [name, text, kind, [sample for sample in samples if not sample[0].endswith("_created")]]
        for name, text, kind, samples in families
        if kind in LASTING
    ]


def merge(snapshots: Sequence[Iterable[Family]]) -> list[Family]:
    """One snapshot of several."""
    families: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for name, text, kind, samples in (family for snapshot in snapshots for family in snapshot):
        families.setdefault(name, [name, text, kind, []])
        merged = values.setdefault(name, {})
        for sample, labels, value in samples:
            key = sample, tuple(labels.items())
            merged[key] = _together(sample, merged[key], value) if key in merged else value
    for name, family in families.items():
        family[3] = [[sample, dict(labels), value] for (sample, labels), value in values[name].items()]
    return list(families.values())


def _together(sample: str, one: float, other: float) -> float:
    if sample.endswith(SMALLEST):
        return min(one, other)
    if sample.endswith(LARGEST):
        return max(one, other)
    return one + other


def render(families: Iterable[Family]) -> bytes:
    """A snapshot in the text format that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def describe(self) -> Iterator[Metric]:
        return iter(())  # nothing to look for twice: it is alone in its registry

    def collect(self) -> Iterator[Metric]:
        for name, text, kind, samples in self._families:
            metric = Metric(name, text, kind)
            for sample, labels, value in samples:
                metric.add_sample(sample, labels, value)
            yield metric
