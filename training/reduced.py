"""What bfloat16 does to a network's answers: measured on dev texts, stated in the manifest, or not stated at all.

Sums in another order are rounded elsewhere, and a runtime may choose the order by the shape of the batch. So texts are
judged as they may be run: alone, among texts of their length, and padded to the network's limit by a longer neighbour.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lengnuan.model.bundle import Bundle, Reduced
from lengnuan.model.engine import Engine, Logits, OnnxEngine, score
from lengnuan.model.errors import EngineUnavailable
from lengnuan.model.openvino_engine import OpenVinoEngine, openvino_version, processor
from lengnuan.model.padding import pad
from lengnuan.model.tokenizer import PAD_ID, cut
from lengnuan.training.errors import UsageError

log = logging.getLogger(__name__)

# A text that dev lacks, or another processor, may be further off than the worst that was seen here.
SAFETY = 2.0
LARGEST_FLIPPED_SHARE = 1e-3
# Running a text alone or padded to the limit costs several times what a sorted batch does.
COSTLY_ROWS = 2000
PADDED_ROWS = 16

Rows = Sequence[Sequence[int]]


def measure_bfloat16(model_file: Path, rows: Rows, exact: Logits, max_tokens: int, threads: int = 0) -> Reduced | None:
    """What the manifest may state about bfloat16, if it can be measured here.

    Args:
        model_file: the graph.
        rows: ids of the dev texts.
        exact: their float32 logits, float32 [N, K].
        max_tokens: the network's limit.
        threads: as for an engine.

    Returns:
        None, with the reason in the log, where OpenVINO can't run bfloat16, or where more than
        `LARGEST_FLIPPED_SHARE` of the texts would get another label.
    """
    try:
        engine = OpenVinoEngine(model_file, "bfloat16", threads, max_tokens)
    except EngineUnavailable as error:
        log.info("bfloat16: not measured, so the bundle will be served in float32: %s", error)
        return None
    found = compare(engine, rows, exact, max_tokens)
    return _judged(found, len(rows), f"openvino {openvino_version()}", processor())


@dataclass(frozen=True)
class Comparison:
    """How an engine's logits differ from those in float32.

    Args:
        by_shape: largest difference of a logit and share of the texts whose label is another, by shape of the batches.
        spread: largest difference of a logit of one text between two of the shapes.
    """

    by_shape: dict[str, tuple[float, float]]
    spread: float


def compare(engine: Engine, rows: Rows, exact: Logits, max_tokens: int) -> Comparison:
    """Run every text in batches of three shapes; up to `COSTLY_ROWS`, evenly spread, in the two that cost most.

    Args:
        engine: of less precision.
        rows: at least one.
        exact: float32 [N, K], of the same rows.
        max_tokens: the network's limit.
    """
    costly = np.linspace(0, len(rows) - 1, min(len(rows), COSTLY_ROWS)).astype(np.int64)
    some = [rows[i] for i in costly]
    together = score(engine, rows, max_tokens)
    alone = score(engine, some, max_tokens, batch_tokens=1)
    padded = np.concatenate(list(_padded(engine, some, max_tokens)))
    cases = {
        "sorted batches": (exact, together),
        "alone": (exact[costly], alone),
        "padded to the limit": (exact[costly], padded),
    }
    found = {}
    for name, (expected, logits) in cases.items():
        difference = float(np.abs(logits - expected).max())
        flipped = float((logits.argmax(axis=1) != expected.argmax(axis=1)).mean())
        found[name] = difference, flipped
        log.info(
            "%s, %s: %d texts, a logit is off by up to %.3g, %.3f %% get another label",
            *(engine.precision, name, len(expected), difference, 100 * flipped),
        )
    with np.errstate(invalid="ignore"):  # an engine may give infinities
        spread = float(np.ptp(np.stack([together[costly], alone, padded]), axis=0).max())
    log.info("%s: between shapes a logit differs by up to %.3g", engine.precision, spread)
    return Comparison(found, spread)


def _padded(engine: Engine, rows: Rows, max_tokens: int) -> Iterator[Logits]:
    """Logits of `PADDED_ROWS` - 1 rows at a time, in order, beside one that is as long as can be."""
    longest = max(rows, key=len) or [PAD_ID]
    neighbour = (list(longest) * max_tokens)[:max_tokens]
    for start in range(0, len(rows), PADDED_ROWS - 1):
        part = [cut(row, max_tokens) for row in rows[start : start + PADDED_ROWS - 1]]
        yield engine.run(*pad([*part, neighbour], PAD_ID))[:-1]


def _judged(found: Comparison, texts: int, runtime: str, chip: str) -> Reduced | None:
    largest = max(difference for difference, _ in found.by_shape.values())
    flipped = max(share for _, share in found.by_shape.values())
    if not np.isfinite(largest) or flipped > LARGEST_FLIPPED_SHARE:
        log.warning(
            "bfloat16: not stated, so the bundle will be served in float32: %.3f %% of the dev texts would get another "
            "label, more than %g %%",
            *(100 * flipped, 100 * LARGEST_FLIPPED_SHARE),
        )
        return None
    tolerance = float(np.format_float_positional(max(SAFETY * largest, 1e-4), 2, fractional=False))
    log.info("bfloat16: stated tolerance %g, %g times the largest difference", tolerance, SAFETY)
    return Reduced(
        tolerance=tolerance,
        largest_difference=largest,
        spread=found.spread,
        flipped_share=flipped,
        texts=texts,
        runtime=runtime,
        processor=chip,
    )


def measure_bundle(path: Path, texts: Sequence[str], threads: int = 0) -> Reduced | None:
    """Measure a finished bundle and state the result in its manifest, the only file that changes.

    A bound that it stated before is taken out when the new measurement allows none.

    Args:
        path: the bundle's folder.
        texts: of the kind it will see, best its dev texts; at least one that isn't empty.
        threads: as for an engine.

    Raises:
        BundleRefused: it can't be used.
        EngineUnavailable: OpenVINO or a CPU with bfloat16 is missing: nothing is changed.
        UsageError: no text that has a token.
    """
    bundle = Bundle.load(path)
    OpenVinoEngine(bundle.model_file, "bfloat16", threads, bundle.manifest.max_tokens)
    rows = [row for row in map(bundle.tokenizer.encode, texts) if row]
    if not rows:
        raise UsageError("no text to measure with")
    exact = score(OnnxEngine(bundle.model_file, "cpu", threads), rows, bundle.manifest.max_tokens)
    found = measure_bfloat16(bundle.model_file, rows, exact, bundle.manifest.max_tokens, threads)
    precision = bundle.manifest.precision.model_copy(update={"reduced": {"bfloat16": found} if found else {}})
    Bundle.write(path, bundle.manifest.model_copy(update={"precision": precision}))
    return found
