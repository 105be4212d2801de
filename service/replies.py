"""Answers as they go on the wire.

Those to texts are the fields of the models in `schemas.py`, in their order, and not the models: pydantic would check
what is right by its making, at the price of an eleventh of a request. Tests check it.
"""

import time
from typing import Any

from lengnuan.service.answers import Answer, Answers
from lengnuan.service.errors import ServiceError
from lengnuan.service.schemas import (
    ClassifyRequest,
    ModelCard,
    ServedLimits,
    ServedPrecision,
    StreamOptions,
)
from lengnuan.service.served import ServedModel
from lengnuan.service.settings import Settings

Fields = dict[str, Any]


def classify_reply(
    request_id: str, wanted: ClassifyRequest, served: ServedModel, answers: Answers, started: float
) -> Fields:
    """The fields of `ClassifyReply` for a request that began at `started` (`time.monotonic()`)."""
    tokens = sum(item.tokens_used for item in answers.items if isinstance(item, Answer))
    seconds = {
        **{"tokenize": answers.tokenize_s, "queue": answers.queue_s, "infer": answers.infer_s},
        **{"total": time.monotonic() - started},
    }
    return {
        "id": request_id,
        "object": "list",
        "created": int(time.time()),
        "model": served.name,
        "model_version": served.bundle.version,
        "data": [
            item_error(index, item, request_id)
            if isinstance(item, ServiceError)
            else classification(index, item, wanted, served.bundle.labels)
            for index, item in enumerate(answers.items)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
        "timings": {stage: round(1000 * spent, 3) for stage, spent in seconds.items()},
    }


def item_error(index: int, error: ServiceError, request_id: str) -> Fields:
    """The fields of `ItemError` for text `index`."""
    return {"index": index, "error": error_fields(error, request_id)}


def error_fields(error: ServiceError, request_id: str) -> Fields:
    """The fields of `ErrorDetail`."""
    return error.detail(request_id).model_dump(exclude_unset=True)


def classification(
    index: int, answer: Answer, wanted: ClassifyRequest | StreamOptions, labels: tuple[str, ...]
) -> Fields:
    """The fields of `Classification` for text `index`, with the extras that were asked for."""
    prediction = answer.prediction
    fields: Fields = {
        "index": index,
        "label": prediction.label,
        "confidence": prediction.confidence,
        "probs": prediction.probabilities,
        "num_classes": len(labels),
        "truncated": answer.truncated,
        "tokens": answer.tokens,
        "tokens_used": answer.tokens_used,
        "abstained": prediction.abstained,
    }
    if wanted.on_long == "window":
        fields["windows"] = answer.windows
    if wanted.return_logits:
        fields["logits"] = answer.logits.tolist()
    if wanted.top_k is not None:
        ranked = sorted(zip(prediction.probabilities, labels, strict=True), key=lambda pair: -pair[0])
        fields["top"] = [{"label": label, "probability": p} for p, label in ranked[: wanted.top_k]]
    return fields


def model_card(served: ServedModel, aliases: list[str], settings: Settings) -> ModelCard:
    """What `/v1/models` tells of a served model."""
    manifest = served.bundle.manifest
    return ModelCard(
        id=served.name,
        object="model",
        aliases=aliases,
        created=manifest.created,
        version=served.bundle.version,
        task=manifest.task,
        problem_type=manifest.problem_type,
        activation="softmax",
        labels=list(manifest.labels),
        display_names=manifest.display_names,
        limits=ServedLimits(
            max_tokens=manifest.max_tokens,
            max_timeout_ms=int(settings.request_timeout_s * 1000),
            **settings.model_dump(include=set(ServedLimits.model_fields)),
        ),
        truncation=manifest.truncation,
        precision=ServedPrecision(
            weights=manifest.precision.weights,
            compute=served.engine.precision,
            tolerance=manifest.precision.bound(served.engine.precision),
            reduced=manifest.precision.reduced,
        ),
        runtime=served.engine.runtime,
        provider=served.engine.provider,
        temperature=manifest.temperature,
        abstain_threshold=manifest.abstain_threshold,
        scores=manifest.scores,
        fingerprint=manifest.fingerprint,
        sha256={name: entry.sha256 for name, entry in manifest.files.items()},
        code_version=manifest.code_version,
    )
