"""`reference.json`: what texts and answers looked like, in counts and shares only; the yardstick for `drift`.

Texts are counted as the network sees them (tokens, unknown tokens, neighbouring characters), answers as it gives them:
labels and confidences on rows that it was not trained on, because it is surer of those it has learnt.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from lengnuan.model.bundle import REFERENCE, Bundle
from lengnuan.model.engine import Engine, score
from lengnuan.model.probabilities import softmax
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.errors import UsageError
from lengnuan.training.files import write_text
from lengnuan.training.sketch import CELLS, Sketch
from lengnuan.training.store import DECISION

HISTOGRAMS = ("length", "unknown", "labels", "confidence")
CHUNK = 2048  # texts that are scored together

# Upper bounds of the bins; one more lies above the last.
LENGTHS = tuple(float(2**power) for power in range(13))
UNKNOWN = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
CONFIDENCES = tuple(round(step / 20, 2) for step in range(1, 20))

_DIGITS = 9  # of a share in the sketch


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Neighbours(_Part):
    """A `Sketch`: rows, its shares, and by sample size what it differs by from its own samples by chance."""

    rows: int
    shares: tuple[float, ...]
    chance: dict[int, float] = {}


class Reference(_Part):
    """A profile of texts and answers.

    Args:
        rows: texts.
        counts: by histogram and bin, how many rows; input and answers may come from different rows.
        ngrams: the sketch of neighbouring characters.
        unknown_token_share: mean over the texts.
        truncated_share: of the texts, those longer than the limit.
        label_share: of the labels that they were given; not of the answers.
        abstained_share: of the answers, those below the threshold.
        tokens_at_most: what files of before `counts` have of the lengths.
    """

    rows: int
    counts: dict[str, dict[str, int]] = {}
    ngrams: Neighbours | None = None
    unknown_token_share: float = 0.0
    truncated_share: float = 0.0
    label_share: dict[str, float] = {}
    abstained_share: float = 0.0
    tokens_at_most: dict[str, float] = {}

    def write(self, path: Path) -> None:
        """As one line of JSON."""
        write_text(path, self.model_dump_json(exclude={"tokens_at_most"}) + "\n")


class Profiler:
    """Counts texts and answers as they come, in memory that does not grow with them.

    Args:
        tokenizer: of the bundle.
        max_tokens: the network's limit.
        labels: names in the order of the outputs.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, labels: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._labels = labels
        self._counts = {name: Counter[str]() for name in HISTOGRAMS}
        self._sketch = Sketch()
        self._unknown = 0.0
        self._truncated = self._abstained = self._answers = 0

    def add_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Count them; returns their token ids."""
        rows = [self._tokenizer.encode(text) for text in texts]
        shares = np.array([self._tokenizer.unknown_share(row) for row in rows])
        lengths = np.array([len(row) for row in rows], dtype=np.float64)
        self._counts["length"] += _binned(lengths, LENGTHS)
        self._counts["unknown"] += _binned(shares, UNKNOWN)
        self._unknown += float(shares.sum())
        self._truncated += int((lengths > self._max_tokens).sum())
        for text in texts:
            self._sketch.add(text)
        return rows

    def add_answers(self, probabilities: npt.NDArray[np.float64], abstain_threshold: float) -> None:
        """Count calibrated answers: float64 [N, K]."""
        confidence = probabilities.max(axis=1)
        best = Counter(probabilities.argmax(axis=1).tolist())
        self._counts["labels"] += Counter({self._labels[index]: count for index, count in best.items()})
        self._counts["confidence"] += _binned(confidence, CONFIDENCES)
        self._abstained += int((confidence < abstain_threshold).sum())
        self._answers += len(confidence)

    def finish(self, label_share: dict[str, float] | None = None) -> Reference:
        """The profile of everything counted."""
        rows = max(1, self._sketch.rows)
        shares = tuple(round(float(share), _DIGITS) for share in self._sketch.shares())
        return Reference(
            rows=self._sketch.rows,
            counts={name: dict(counts) for name, counts in self._counts.items()},
            ngrams=Neighbours(rows=self._sketch.rows, shares=shares, chance=self._sketch.chance()),
            unknown_token_share=self._unknown / rows,
            truncated_share=self._truncated / rows,
            label_share=label_share or {},
            abstained_share=self._abstained / max(1, self._answers),
        )


def _binned(values: npt.NDArray[np.float64], edges: Sequence[float]) -> Counter[str]:
    """How many values lie in each bin, by name: `<=16` is those above the next smaller edge, up to and with 16."""
    names = [*(f"<={edge:g}" for edge in edges), f">{edges[-1]:g}"]
    counts = np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(names))
    return Counter({name: int(count) for name, count in zip(names, counts, strict=True) if count})


def profile(bundle: Bundle, engine: Engine, texts: Iterable[str]) -> Reference:
    """Of any texts, with what the bundle answers to them.

    Raises:
        UsageError: there are none.
    """
    manifest = bundle.manifest
    profiler = Profiler(bundle.tokenizer, manifest.max_tokens, bundle.labels)
    rest = iter(texts)
    while chunk := list(islice(rest, CHUNK)):
        logits = score(engine, profiler.add_texts(chunk), manifest.max_tokens)
        profiler.add_answers(softmax(logits / manifest.temperature), manifest.abstain_threshold)
    found = profiler.finish()
    if not found.rows:
        raise UsageError("no text to profile: the files hold none in that column")
    return found


def read_reference(path: Path) -> Reference:
    """The profile in a file; one of an earlier release has its lengths alone.

    Raises:
        UsageError: no such file, or no profile in it.
    """
    try:
        found = Reference.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: make one with `lengnuan-train reference`") from error
    except ValidationError as error:
        raise UsageError(f"{path}: not a profile: make one with `lengnuan-train reference`") from error
    if found.ngrams and len(found.ngrams.shares) != CELLS:
        raise UsageError(f"{path}: {len(found.ngrams.shares)} cells, {CELLS} needed: make it again with this release")
    if not found.counts and found.tokens_at_most:
        return found.model_copy(update={"counts": {"length": _lengths(found)}})
    return found


def _lengths(old: Reference) -> dict[str, int]:
    """The bins of `tokens_at_most`, which holds rising shares by upper bound."""
    shares = [0.0, *old.tokens_at_most.values(), 1.0]
    edges = [float(edge) for edge in old.tokens_at_most]
    names = [*(f"<={edge:g}" for edge in edges), f">{edges[-1]:g}"]
    counts = {name: round((high - low) * old.rows) for name, low, high in zip(names, shares, shares[1:], strict=False)}
    return {name: count for name, count in counts.items() if count}


def put_reference(bundle: Bundle, reference: Reference) -> None:
    """Into the bundle's folder, which is sealed again: no answer changes, but its version does.

    Raises:
        UsageError: the bundle lies in a store, where its version names its place.
    """
    if (bundle.path / DECISION).exists():
        raise UsageError(f"{bundle.path} lies in a bundle store and is not changed: write the profile with --output")
    reference.write(bundle.path / REFERENCE)
    Bundle.write(bundle.path, bundle.manifest)
