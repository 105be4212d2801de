"""Metrics that several models share: one family for each name, one series for each model."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, overload

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Metric = TypeVar("Metric", Counter, Gauge, Histogram)

PREFIX = "lengnuan"
MODEL = "model"


class Families:
    """The metrics of a registry by name; each is made when it is first asked for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._made: dict[str, Any] = {}

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """A counter; its series end in `_total`."""
        return self._family(Counter, name, text, labels)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A gauge."""
        return self._family(Gauge, name, text, labels)

    def histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        """A histogram with these upper bounds."""
        return self._family(Histogram, name, text, labels, buckets=buckets)

    def _family(self, kind: type[Metric], name: str, text: str, labels: Sequence[str], **more: Any) -> Metric:
        if name not in self._made:
            self._made[name] = kind(name, text, labels, namespace=PREFIX, registry=self.registry, **more)
        made: Metric = self._made[name]
        return made


class Labelled(Generic[Metric]):
    """A metric of one model that has more labels than that."""

    def __init__(self, family: Metric, model: str) -> None:
        self._family: Metric = family
        self._model = model

    def labels(self, *values: str) -> Metric:
        """The series with these values of the other labels."""
        series: Metric = self._family.labels(self._model, *values)
        return series

    def remove(self, *values: str) -> None:
        """Forget the series with these values."""
        self._family.remove(self._model, *values)


class ModelFamilies:
    """Makes the metrics of one model: with no labels beside `model` a series, with more the `Labelled` ones.

    Args:
        families: shared with the other models.
        model: the label's value.
    """

    def __init__(self, families: Families, model: str) -> None:
        self.registry = families.registry
        self._families = families
        self._model = model

    @overload
    def _counter(self, name: str, text: str) -> Counter: ...
    @overload
    def _counter(self, name: str, text: str, label: str, /, *labels: str) -> Labelled[Counter]: ...
    def _counter(self, name: str, text: str, *labels: str) -> Counter | Labelled[Counter]:
        return self._of_model(self._families.counter(name, text, MODEL, *labels), labels)

    @overload
    def _gauge(self, name: str, text: str) -> Gauge: ...
    @overload
    def _gauge(self, name: str, text: str, label: str, /, *labels: str) -> Labelled[Gauge]: ...
    def _gauge(self, name: str, text: str, *labels: str) -> Gauge | Labelled[Gauge]:
        return self._of_model(self._families.gauge(name, text, MODEL, *labels), labels)

    @overload
    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram: ...
    @overload
    def _histogram(
        self, name: str, text: str, buckets: Sequence[float], label: str, /, *labels: str
    ) -> Labelled[Histogram]: ...
    def _histogram(
        self, name: str, text: str, buckets: Sequence[float], *labels: str
    ) -> Histogram | Labelled[Histogram]:
        return self._of_model(self._families.histogram(name, text, buckets, MODEL, *labels), labels)

    def _of_model(self, family: Metric, labels: Sequence[str]) -> Metric | Labelled[Metric]:
        bound = Labelled(family, self._model)
        return bound if labels else bound.labels()
