"""The pictures of a report, as SVG text: no file, no display."""

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengnuan.training.calibrate import coverage_curve
from lengnuan.training.scores import CALIBRATION_BINS, Scored

MODEL_COLOUR = "#1f6f8b"
REFEREE_COLOUR = "#c9a227"


def training_curve(metrics_file: Path) -> str | None:
    """Training loss and dev accuracy against steps; None for a run without steps, such as a mean of others."""
    rows = [json.loads(line) for line in metrics_file.read_text(encoding="utf-8").splitlines()]
    fit = [row for row in rows if row["stage"] == "fit"]
    loss = [(row["step"], row["loss"]) for row in fit if row.get("loss") is not None]
    dev = [(row["step"], row["dev_accuracy"]) for row in fit if row.get("dev_accuracy") is not None]
    if not loss:
        return None
    figure, axes = _figure("step", "training loss")
    steps, values = np.array(loss).T
    window = max(1, len(values) // 40)  # the log has every 20th step
    smooth = np.convolve(values, np.ones(window) / window, mode="valid")
    axes.plot(steps[window - 1 :], smooth, color=MODEL_COLOUR, label=f"loss, mean of {window * 20} steps")
    right = axes.twinx()
    right.set_ylabel("dev accuracy")
    if dev:
        right.plot(*np.array(dev).T, color=REFEREE_COLOUR, marker="o", label="dev accuracy")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return _svg(figure)


def accuracy_bars(test: Mapping[str, Mapping[str, Any]], referee: Mapping[str, Mapping[str, Any]]) -> str:
    """Accuracy on each test source with its 95 % interval, the referee beside."""
    figure, axes = _figure("", "test accuracy, %")
    places = np.arange(len(test))
    for offset, colour, name, found in ((-0.2, MODEL_COLOUR, "model", test), (0.2, REFEREE_COLOUR, "n-grams", referee)):
        values = np.array([figures["accuracy"] for figures in found.values()])
        intervals = np.array([figures["accuracy_interval"] for figures in found.values()])
        errors = np.abs(intervals.T - values)
        axes.bar(places + offset, 100 * values, 0.38, yerr=100 * errors, color=colour, label=name, capsize=2)
    axes.set_xticks(places, list(test), rotation=30, ha="right")
    low = min(figures["accuracy_interval"][0] for found in (test, referee) for figures in found.values())
    axes.set_ylim(max(0.0, 100 * low - 5), 100)
    axes.figure.legend(frameon=False, ncols=2, loc="outside upper center")
    return _svg(figure)


def reliability(parts: Mapping[str, Scored]) -> str:
    """Accuracy against confidence: on the diagonal, the confidence is the truth."""
    confidence, right = _joined(parts)
    figure, axes = _figure("confidence", "accuracy")
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    filled = sorted(set(bins.tolist()))
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle="--")
    axes.bar(
        [(b + 0.5) / CALIBRATION_BINS for b in filled],
        [float(right[bins == b].mean()) for b in filled],
        0.9 / CALIBRATION_BINS,
        color=MODEL_COLOUR,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return _svg(figure)


def coverage(parts: Mapping[str, Scored], threshold: float) -> str:
    """Accuracy of the rows that are answered against the share that is, as the abstain threshold rises."""
    labels = np.concatenate([part.labels for part in parts.values()])
    probabilities = np.concatenate([part.probabilities for part in parts.values()])
    curve = np.array(coverage_curve(labels, probabilities))
    figure, axes = _figure("share answered", "accuracy of what is answered")
    axes.plot(curve[:, 1], curve[:, 2], color=MODEL_COLOUR)
    chosen = curve[np.abs(curve[:, 0] - threshold).argmin()] if threshold else curve[0]
    axes.plot(chosen[1], chosen[2], "o", color=REFEREE_COLOUR, label=f"this bundle: threshold {threshold:.2f}")
    axes.legend(frameon=False)
    return _svg(figure)


def confusion(counts: Sequence[Sequence[int]], labels: Sequence[str]) -> str:
    """Rows: the label; columns: the answer."""
    table = np.array(counts)
    figure, axes = _figure("answer", "label")
    axes.imshow(table / np.maximum(table.sum(axis=1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    for (row, column), count in np.ndenumerate(table):
        dark = count > 0.6 * table[row].sum()
        axes.text(column, row, f"{count:,}", ha="center", va="center", color="white" if dark else "black")
    return _svg(figure)


def _joined(parts: Mapping[str, Scored]) -> tuple[Any, Any]:
    confidence = np.concatenate([part.probabilities.max(axis=1) for part in parts.values()])
    return confidence, np.concatenate([part.right for part in parts.values()])


def _figure(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    """Text as text, so that any class name shows in the reader's own fonts; no date, so that equal runs are equal."""
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lengnuan"}), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph"
        )  # of the font that only measures: Chinese names show in the page's own
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
