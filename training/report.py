"""What a person reads about a run: report.html, MODEL_CARD.md, and metrics.json for programs."""

import html
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lengnuan.training import plots
from lengnuan.training.config import TrainConfig
from lengnuan.training.effort import effort_of
from lengnuan.training.examples import Examples
from lengnuan.training.figures import SCORE_HEAD, percent, score_cells, span, verdict
from lengnuan.training.model_card import answered_table, model_card
from lengnuan.training.nonsense import KINDS
from lengnuan.training.scores import Scored
from lengnuan.training.spread import seeds_sentence, seeds_table

WORST_ERRORS = 20
SHOWN_CHARACTERS = 160

_FIGURE = re.compile(r"[-+–.,\d]+( to [-+.\d]+)?")
_STYLE = """
body { font: 16px/1.5 system-ui, "Noto Sans SC", "PingFang SC", "Microsoft YaHei", sans-serif; margin: 2rem auto;
       max-width: 70rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd }
td.n { text-align: right; font-variant-numeric: tabular-nums } th { text-align: left }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem }
figure { margin: 0 } svg { width: 100%; height: auto } figcaption { color: #555 } pre { overflow-x: auto }
"""


@dataclass(frozen=True)
class Findings:
    """Everything measured about a bundle.

    Args:
        figures: the content of metrics.json.
        dev: calibrated predictions by dev source.
        test: the same by test source.
        test_examples: the rows behind `test`.
    """

    figures: dict[str, Any]
    dev: dict[str, Scored]
    test: dict[str, Scored]
    test_examples: dict[str, Examples]

    def short(self) -> dict[str, Any]:
        """The figures that the manifest quotes: test accuracy with interval, the means, the margin."""
        if not self.test:
            return {"dev_accuracy": self.figures["training"]["dev_accuracy_of_bundle"]}
        files = self.figures["test"]["files"]
        return {
            "test": {name: _quoted(found) for name, found in files.items()},
            "mean": self.figures["test"]["mean"],
            "margin_over_referee": self.figures["margin_over_referee"]["mean"],
        }


def _quoted(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of one test source: the official figures, and beside them those of its rows that are not in or near train."""
    keys = ("rows", "accuracy", "accuracy_interval", "macro_f1", "ece")
    figures = {key: found[key] for key in keys}
    clean = found.get("clean", {"rows": 0})
    return figures | ({"clean": {key: clean[key] for key in keys}} if clean["rows"] else {})


def write_report(folder: Path, config: TrainConfig, findings: Findings, run_folder: Path) -> None:
    """Write the three files into `folder`; the run folder tells the training curve and what it cost."""
    folder.mkdir(parents=True)
    resolved = config.model_copy(update={"data": config.data.model_copy(update={"root": Path()})})
    settings = resolved.model_dump(mode="json", exclude={"tracking"})
    made = {"config": settings, "made_with": _versions(), "effort": effort_of(run_folder)}
    figures = findings.figures | made
    (folder / "metrics.json").write_text(json.dumps(figures, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(_page(config, findings, run_folder / "metrics.jsonl"), encoding="utf-8")
    (folder / "MODEL_CARD.md").write_text(model_card(config, figures), encoding="utf-8")


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}


def _page(config: TrainConfig, findings: Findings, metrics_file: Path) -> str:
    figures = findings.figures
    parts = [f"<h1>{html.escape(config.name)}</h1>", f"<p>{html.escape(verdict(figures))}</p>"]
    if findings.test:
        parts += ["<h2>Test</h2>", _score_table(figures)]
        parts += ["<h2>By class and domain</h2>", _class_table(figures), _domain_table(figures)]
    if "seeds" in figures:
        parts += ["<h2>Seeds</h2>", f"<p>{seeds_sentence(figures)}</p>", _table(*seeds_table(figures))]
    parts += ["<h2>Pictures</h2>", '<div class="plots">', *_pictures(findings, metrics_file), "</div>"]
    parts += ["<h2>Abstaining and confidence</h2>", _answered_table(figures), _nonsense(figures)]
    parts += ["<h2>Data</h2>", _data_table(figures["data"])]
    if findings.test:
        parts += ["<h2>Worst errors</h2>", _worst_errors(findings)]
    parts += ["<h2>Config</h2>", f"<pre>{html.escape(_config_text(config))}</pre>"]
    body = "\n".join(parts)
    title = f"Lengnuan report: {html.escape(config.name)}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>\n{body}\n'
    )


def _config_text(config: TrainConfig) -> str:
    settings = config.model_dump(mode="json", exclude={"data": {"root"}, "tracking": True})
    return json.dumps(settings, ensure_ascii=False, indent=2)


def _score_table(figures: Mapping[str, Any]) -> str:
    head = ["source", *SCORE_HEAD, "n-grams %", "margin", "95 % interval"]
    rows = []
    for name, found in figures["test"]["files"].items():
        gap = figures["margin_over_referee"]["sources"][name]
        referee = [percent(figures["referee"]["test"][name]["accuracy"]), f"{100 * gap['margin']:+.2f}"]
        rows.append([name, *score_cells(found), *referee, span(gap["interval"], signed=True)])
        for kind in ("clean", "leaked"):
            part = found.get(kind, {"rows": 0})
            if part["rows"]:
                rows.append([f"– {kind} rows", *score_cells(part), "", "", ""])
    return _table(head, rows)


def _class_table(figures: Mapping[str, Any]) -> str:
    rows = [
        [source, name, f"{found['rows']:,}", *(percent(found[key]) for key in ("precision", "recall", "f1"))]
        for source, figures_of in figures["test"]["files"].items()
        for name, found in figures_of["classes"].items()
    ]
    return _table(["source", "class", "rows", "precision %", "recall %", "F1 %"], rows)


def _domain_table(figures: Mapping[str, Any]) -> str:
    rows = [
        [source, domain, f"{found['rows']:,}", percent(found["accuracy"]), span(found["accuracy_interval"])]
        for source, figures_of in figures["test"]["files"].items()
        for domain, found in figures_of.get("domains", {}).items()
    ]
    return _table(["source", "domain", "rows", "accuracy %", "95 % interval"], rows) if rows else ""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{html.escape(cell)}" for cell in head)]
    for row in rows:
        lines.append("<tr>" + "".join(map(_cell, row)))
    return "\n".join([*lines, "</table>"])


def _cell(text: str) -> str:
    return f'<td class="n">{text}' if _FIGURE.fullmatch(text) else f"<td>{html.escape(text)}"


def _answered_table(figures: Mapping[str, Any]) -> str:
    """What abstaining does at several thresholds on dev, and at the bundle's own on each test."""
    curve = figures["calibration"]["dev_curve"]
    rows = [[f"{threshold:.2f}", percent(share), percent(accuracy)] for threshold, share, accuracy in curve]
    dev = _table(["threshold, on dev", "answered %", "right of those %"], rows[::5])
    return dev + _table(*answered_table(figures)) if figures["test"] else dev


def _nonsense(figures: Mapping[str, Any]) -> str:
    found = figures["nonsense"]
    head = ["nonsense: random characters", "texts", f"confidence under {found['limit']:g}, %", "mean confidence %"]
    rows = [
        [kind, f"{of['texts']:,}", percent(of["below_limit"]), percent(of["mean_confidence"])]
        for kind, of in found.items()
        if kind in KINDS
    ]
    return _table(head, rows)


def _pictures(findings: Findings, metrics_file: Path) -> list[str]:
    figures = findings.figures
    threshold = figures["calibration"]["abstain_threshold"]
    shown = [
        (plots.training_curve(metrics_file), "Training"),
        (plots.reliability(findings.dev), "Calibration on dev"),
        (plots.coverage(findings.dev, threshold), "What abstaining buys, on dev"),
    ]
    if findings.test:
        files = figures["test"]["files"]
        shown.insert(1, (plots.accuracy_bars(files, figures["referee"]["test"]), "Test accuracy and 95 % intervals"))
        total = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in
                 zip(*(found["confusion"] for found in files.values()), strict=True)]  # fmt: skip
        shown.append((plots.confusion(total, figures["labels"]), "Confusion, all test sources"))
    return [f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>" for svg, caption in shown if svg]


def _data_table(facts: Mapping[str, Any]) -> str:
    head = ["file", "lines", "accepted", "blank", "rejected"]
    rows = [[f["path"], *(f"{f[key]:,}" for key in head[1:])] for f in facts["files"]]
    dropped = (
        f"{facts['train_rows']:,} training rows; dropped {facts['train_repeats_dropped']:,} repeats, "
        f"{facts['train_conflicts_dropped']:,} with two labels, {facts['train_leaked_dropped']:,} also in dev or test."
    )
    return _table(head, rows) + f"<p>{dropped}</p>" + _gate_table(facts)


def _gate_table(facts: Mapping[str, Any]) -> str:
    """What the data gate measured; the leaked rows are those that the clean scores leave out."""
    rows = []
    for found in facts["gate"]:
        state = "within" if not found["past"] else "past, acknowledged" if found["acknowledged"] else "past"
        concern = found["concern"].replace("_", " ")
        rows.append([concern, found["where"], percent(found["share"]), percent(found["limit"]), state])
    return _table(["data gate", "where", "share %", "limit %", ""], rows)


def _worst_errors(findings: Findings) -> str:
    """The test rows where the model was most sure and wrong: often the label is."""
    labels = findings.figures["labels"]
    errors = []
    for name, part in findings.test.items():
        for example, row, right in zip(findings.test_examples[name], part.probabilities, part.right, strict=True):
            if not right:
                text = example.text[:SHOWN_CHARACTERS] + ("…" if len(example.text) > SHOWN_CHARACTERS else "")
                errors.append((float(row.max()), name, labels[example.label], labels[int(row.argmax())], text))
    errors.sort(reverse=True)
    rows = [[text, name, label, answer, f"{p:.3f}"] for p, name, label, answer, text in errors[:WORST_ERRORS]]
    return _table(["text", "source", "label", "answer", "confidence"], rows)
