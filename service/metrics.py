"""Every metric of the service: names, labels and buckets in one place, in a registry of the app's own.

All but those of HTTP, of keys and of the process have the label `model`: the name under which the service serves it,
not that of its bundle, so that another bundle under the same name goes on with the same series. `lengnuan_model_info`
has what is behind it. Seconds and bytes, and nothing of a caller in a label but the name of its key. The batcher
measures queue and batches, `ServedModel` texts, `Access` HTTP and keys, `Keys` its file, `ModelSlot` the model,
`Shadow` what it compares; nobody else.

Identity, model by model: `items_received_total` = the sum over outcomes of `items_total` + `items_in_flight`.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from lengnuan.model.bundle import Bundle
from lengnuan.model.engine import Engine
from lengnuan.model.probabilities import Prediction
from lengnuan.service.errors import Outcome, ServiceError
from lengnuan.service.families import Families, ModelFamilies
from lengnuan.service.settings import DEFAULT_NAME

CONTENT_TYPE = CONTENT_TYPE_LATEST
ReloadResult = Literal["reloaded", "unchanged", "refused"]
ShadowResult = Literal["same", "different", "dropped", "failed"]
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = tuple(2.0**n for n in range(11))
TOKENS = tuple(2.0**n for n in range(13))
BATCH_TOKENS = tuple(2.0**n for n in range(4, 18))
CHARS = tuple(2.0**n for n in range(18))
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """The metrics of one app: those of HTTP and of keys, and `of` each model.

    Attributes:
        registry: all of them.
        default: those of the model that is served when a request names none.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._families = Families(self.registry)
        self._add_http()
        self._add_keys()
        self._models: dict[str, ModelMetrics] = {}
        self.default = self.of(DEFAULT_NAME)

    def of(self, model: str) -> "ModelMetrics":
        """The metrics of the model that is served under this name; the same ones each time."""
        if model not in self._models:
            self._models[model] = ModelMetrics(self._families, model)
        return self._models[model]

    def _add_http(self) -> None:
        self.http_requests = self._families.counter("http_requests", "Requests answered.", "route", "method", "status")
        self.http_seconds = self._families.histogram(
            "http_request_duration_seconds", "Whole time of a request.", SECONDS, "route", "status_class"
        )
        self.http_in_flight = self._families.gauge("http_requests_in_flight", "Requests being answered.")

    def _add_keys(self) -> None:
        self.key_requests = self._families.counter(
            "key_requests", "Requests answered, by the name of their key.", "key", "status"
        )
        self.key_texts = self._families.counter("key_texts", "Texts that came in, by the name of the key.", "key")
        self.keys_stale = self._families.gauge("keys_stale", "1 when the newest keys file could not be read.")

    def render(self) -> bytes:
        """All metrics in the text format that Prometheus reads."""
        return generate_latest(self.registry)

    def observe_http(self, route: str, method: str, status: int, seconds: float) -> None:
        """One finished request. `route` is a template, or `unmatched`."""
        self.http_requests.labels(route, method if method in METHODS else "other", str(status)).inc()
        self.http_seconds.labels(route, f"{status // 100}xx").observe(seconds)

    def observe_key(self, key: str, status: int, texts: int) -> None:
        """One finished request with a valid key. `key` is its name in the keys file."""
        self.key_requests.labels(key, str(status)).inc()
        self.key_texts.labels(key).inc(texts)


class ModelMetrics(ModelFamilies):
    """The metrics of one model, by subject: items, queue and batches, the model itself."""

    def __init__(self, families: Families, model: str) -> None:
        super().__init__(families, model)
        self._add_items()
        self._add_batches()
        self._add_model()

    def _add_items(self) -> None:
        self.items_received = self._counter("items_received", "Texts that came in.")
        self.items_in_flight = self._gauge("items_in_flight", "Texts without an outcome yet.")
        items = self._counter("items", "Texts by how they ended; each ends once.", "outcome")
        self.items = {outcome: items.labels(outcome) for outcome in get_args(Outcome)}
        stages = self._histogram(
            "stage_duration_seconds",
            "Time per stage: tokenize and postprocess of a request, queue of a text, infer of a batch.",
            SECONDS,
            "stage",
        )
        self.tokenize_seconds = stages.labels("tokenize")
        self.queue_seconds = stages.labels("queue")
        self.infer_seconds = stages.labels("infer")
        self.postprocess_seconds = stages.labels("postprocess")
        self.input_chars = self._histogram("input_chars", "Characters of a text.", CHARS)
        self.input_tokens = self._histogram("input_tokens", "Tokens of a text, before truncation.", TOKENS)
        self.truncated = self._counter("truncated_items", "Texts of which the model read head and tail only.")
        self.unknown_ratio = self._histogram(
            "unknown_token_ratio", "Share of a text's tokens that are bare bytes: outside the vocabulary.", SHARES
        )
        self.predictions = self._counter("predictions", "Answers by label.", "label")
        self.abstained = self._counter("abstained_predictions", "Answers below the abstain threshold.")
        self.confidence = self._histogram("prediction_confidence", "Confidence of an answer.", CONFIDENCES)

    def _add_batches(self) -> None:
        self.queue_items = self._gauge("queue_items", "Texts that wait.", "priority")
        self.queue_tokens = self._gauge("queue_tokens", "Tokens that wait.", "priority")
        self.queue_oldest_seconds = self._gauge(
            "queue_oldest_seconds", "Age of the text that waits longest.", "priority"
        )
        self.queue_limit_items = self._gauge("queue_limit_items", "Texts that may wait.", "priority")
        self.queue_limit_tokens = self._gauge("queue_limit_tokens", "Tokens that may wait.", "priority")
        self.queue_limit_seconds = self._gauge(
            "queue_limit_seconds", "How long a text may have waited for more to come in.", "priority"
        )
        self.batch_limit_tokens = self._gauge(
            "batch_limit_tokens", "Padded tokens that a batch may hold; fewer for a while after running out of memory."
        )
        self.batch_rows = self._histogram("batch_rows", "Texts in a batch.", ROWS)
        self.batch_tokens = self._histogram("batch_tokens", "Padded tokens in a batch.", BATCH_TOKENS)
        self.batch_padding_ratio = self._histogram("batch_padding_ratio", "Padding over padded tokens.", SHARES)
        self.batch_close_reason = self._counter("batch_close_reason", "Why batches weren't larger.", "reason")
        self.shared_answers = self._counter("shared_answers", "Texts answered by the run of an equal one beside them.")
        lookups = self._counter("cache_lookups", "Texts looked up among earlier answers.", "result")
        self._cache_hits, self._cache_misses = lookups.labels("hit"), lookups.labels("miss")
        self.cache_items = self._gauge("cache_items", "Earlier answers that are kept.")
        errors = self._counter(
            "backend_errors",
            "Failures of the engine. runtime: texts on which it raised; not_finite: texts that got no number; oom: "
            "batches for which there was too little memory.",
            "kind",
        )
        self.engine_errors = {kind: errors.labels(kind) for kind in ("runtime", "not_finite", "oom")}

    def _add_model(self) -> None:
        labels = ("name", "version", "sha", "backend", "precision", "provider", "tolerance")
        self._model_info = self._gauge("model_info", "The model and what really runs it.", *labels)
        self._described: tuple[str, ...] | None = None
        self.model_ready = self._gauge("model_ready", "1 when it can be asked: /readyz is 200 when all can.")
        self.model_load_seconds = self._gauge(
            "model_load_seconds", "Time to read bundle and graph and to give the golden answers."
        )
        self.warmup_seconds = self._gauge(
            "warmup_seconds", "Time for the smallest and the largest batch, before ready."
        )
        reloads = self._counter("reload", "Reloads by what came of them.", "result")
        self.reloads = {result: reloads.labels(result) for result in get_args(ReloadResult)}
        shadowed = self._counter("shadow", "Texts of the default model that this one was to answer too.", "result")
        self.shadowed = {result: shadowed.labels(result) for result in get_args(ShadowResult)}

    def describe(self, bundle: Bundle, engine: Engine) -> None:
        """Say what is served from now on, and no longer what was before."""
        manifest = bundle.manifest
        described = (
            *(manifest.name, bundle.version, manifest.files["model.onnx"].sha256[:12]),
            *(engine.runtime, engine.precision, engine.provider),
            f"{manifest.precision.bound(engine.precision):g}",
        )
        if self._described is not None:
            self._model_info.remove(*self._described)
        self._model_info.labels(*described).set(1)
        self._described = described

    @contextmanager
    def count_items(self, count: int) -> Iterator[list[Outcome]]:
        """Give each of `count` texts exactly one outcome, however the block ends.

        Yields:
            A list for the block to fill with the outcome of each text. If the block raises instead, all of those
            still missing get the outcome of the error.
        """
        outcomes: list[Outcome] = []
        rest: Outcome = "failed"
        self.items_received.inc(count)
        self.items_in_flight.inc(count)
        try:
            yield outcomes
        except ServiceError as error:
            rest = error.outcome
            raise
        except asyncio.CancelledError:
            rest = "cancelled"
            raise
        finally:
            for index in range(count):
                self.items[outcomes[index] if index < len(outcomes) else rest].inc()
            self.items_in_flight.dec(count)

    def observe_answer(self, prediction: Prediction, truncated: bool) -> None:
        """One answer, and whether the model read a part of the text only."""
        self.predictions.labels(prediction.label).inc()
        self.confidence.observe(prediction.confidence)
        if prediction.abstained:
            self.abstained.inc()
        if truncated:
            self.truncated.inc()

    def observe_cache(self, hits: int, misses: int) -> None:
        """Texts that earlier answers had, and those that they had not."""
        self._cache_hits.inc(hits)
        self._cache_misses.inc(misses)

    def observe_batch(self, lengths: Sequence[int], reason: str, seconds: float) -> None:
        """One executed batch: the token counts of its rows, why it wasn't larger, the time it took."""
        padded = max(lengths) * len(lengths)
        self.batch_rows.observe(len(lengths))
        self.batch_tokens.observe(padded)
        self.batch_padding_ratio.observe(1 - sum(lengths) / padded)
        self.batch_close_reason.labels(reason).inc()
        self.infer_seconds.observe(seconds)
