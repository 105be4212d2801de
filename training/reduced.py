"""What cheaper arithmetic does to a network's answers: measured on dev texts, stated in the manifest, or not at all.

Sums in another order are rounded elsewhere, and a runtime may choose the order by the shape of the batch. So texts are
judged as they may be run: alone, among texts of their length, and padded to the network's limit by a longer neighbour.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from lengnuan.model.bundle import Bundle, Reduced, ReducedType
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


def measure(
    model_file: Path, rows: Rows, exact: Logits, max_tokens: int, threads: int = 0
) -> dict[ReducedType, Reduced | None]:
    """What the manifest may state about each cheaper arithmetic that can be measured here.

    Args:
        model_file: the graph.
        rows: ids of the dev texts.
        exact: their float32 logits, float32 [N, K].
        max_tokens: the network's limit.
        threads: as for an engine.

    Returns:
        None for one with which more than `LARGEST_FLIPPED_SHARE` of the texts would get another label. One that this
        machine does not have is left out, with the reason in the log.
    """
    opened: dict[ReducedType, Callable[[], Engine]] = {
        "bfloat16": lambda: OpenVinoEngine(model_file, "bfloat16", threads, max_tokens),
        "float16": lambda: OnnxEngine(model_file, "cuda", threads, "float16"),
    }
    found: dict[ReducedType, Reduced | None] = {}
    for precision, open_one in opened.items():
        try:
            engine = open_one()
        except EngineUnavailable as error:
            log.info("%s: not measured: %s", precision, error)
        else:
            found[precision] = _judged(compare(engine, rows, exact, max_tokens), len(rows), precision)
    return found


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


def _judged(found: Comparison, texts: int, precision: ReducedType) -> Reduced | None:
    largest = max(difference for difference, _ in found.by_shape.values())
    flipped = max(share for _, share in found.by_shape.values())
    if not np.isfinite(largest) or flipped > LARGEST_FLIPPED_SHARE:
        log.warning(
            "%s: not stated, so the bundle will be served in float32: %.3f %% of the dev texts would get another "
            "label, more than %g %%",
            *(precision, 100 * flipped, 100 * LARGEST_FLIPPED_SHARE),
        )
        return None
    tolerance = float(np.format_float_positional(max(SAFETY * largest, 1e-4), 2, fractional=False))
    log.info("%s: stated tolerance %g, %g times the largest difference", precision, tolerance, SAFETY)
    on_cpu = precision == "bfloat16"
    return Reduced(
        tolerance=tolerance,
        largest_difference=largest,
        spread=found.spread,
        flipped_share=flipped,
        texts=texts,
        runtime=f"openvino {openvino_version()}" if on_cpu else f"onnxruntime {version('onnxruntime-gpu')}",
        processor=processor() if on_cpu else "CUDA",
    )


def measure_bundle(path: Path, texts: Sequence[str], threads: int = 0) -> None:
    """Measure a finished bundle and state the result in its manifest, the only file that changes.

    A bound that it stated before is taken out when the new measurement allows none, and stays where this machine can't
    measure it.

    Args:
        path: the bundle's folder.
        texts: of the kind it will see, best its dev texts; at least one that isn't empty.
        threads: as for an engine.

    Raises:
        BundleRefused: it can't be used.
        EngineUnavailable: there is no cheaper arithmetic here: nothing is changed.
        UsageError: no text that has a token.
    """
    bundle = Bundle.load(path)
    rows = [row for row in map(bundle.tokenizer.encode, texts) if row]
    if not rows:
        raise UsageError("no text to measure with")
    exact = score(OnnxEngine(bundle.model_file, "cpu", threads), rows, bundle.manifest.max_tokens)
    found = measure(bundle.model_file, rows, exact, bundle.manifest.max_tokens, threads)
    if not found:
        raise EngineUnavailable("no OpenVINO with a CPU that has bfloat16, and no CUDA: nothing to measure")
    stated = {name: entry for name, entry in (bundle.manifest.precision.reduced | found).items() if entry}
    precision = bundle.manifest.precision.model_copy(update={"reduced": stated})
    Bundle.write(path, bundle.manifest.model_copy(update={"precision": precision}))
