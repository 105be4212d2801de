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
from lengnuan.training.corpus import Examples
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


def write_report(folder: Path, config: TrainConfig, findings: Findings, metrics_file: Path) -> None:
    """Write the three files into `folder`; `metrics_file`: the run's metrics.jsonl, for the training curve."""
    folder.mkdir(parents=True)
    resolved = config.model_copy(update={"data": config.data.model_copy(update={"root": Path()})})
    figures = findings.figures | {"config": resolved.model_dump(mode="json"), "made_with": _versions()}
    (folder / "metrics.json").write_text(json.dumps(figures, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(_page(config, findings, metrics_file), encoding="utf-8")
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
    return json.dumps(config.model_dump(mode="json", exclude={"data": {"root"}}), ensure_ascii=False, indent=2)


def verdict(figures: Mapping[str, Any]) -> str:
    """One sentence: is the network worth having over the referee?"""
    if not figures["margin_over_referee"]:
        dev = figures["training"]["dev_accuracy_of_bundle"]
        return (
            f"No test rows. Dev accuracy {100 * dev:.2f} %, n-grams {100 * figures['referee']['dev_accuracy']:.2f} %."
        )
    found = figures["margin_over_referee"]["mean"]
    low, high = (100 * bound for bound in found["interval"])
    kind = "above" if low > 0 else "below" if high < 0 else "not distinguishable from"
    mean = 100 * figures["test"]["mean"]["accuracy"]
    return (
        f"Mean test accuracy {mean:.2f} %, {100 * found['margin']:+.2f} points against the n-gram referee "
        f"(95 % interval {low:+.2f} to {high:+.2f}): {kind} it."
    )


def _score_table(figures: Mapping[str, Any]) -> str:
    head = ["source", "rows", "accuracy %", "95 % interval", "macro-F1 %", "ECE", "n-grams %", "margin"]
    head += ["95 % interval"]
    rows = []
    for name, found in figures["test"]["files"].items():
        gap = figures["margin_over_referee"]["sources"][name]
        referee = [_percent(figures["referee"]["test"][name]["accuracy"]), f"{100 * gap['margin']:+.2f}"]
        rows.append([name, *_cells(found), *referee, _range(gap["interval"], signed=True)])
        for kind in ("clean", "leaked"):
            part = found.get(kind, {"rows": 0})
            if part["rows"]:
                rows.append([f"– {kind} rows", *_cells(part), "", "", ""])
    return _table(head, rows)


def _class_table(figures: Mapping[str, Any]) -> str:
    rows = [
        [source, name, f"{found['rows']:,}", *(_percent(found[key]) for key in ("precision", "recall", "f1"))]
        for source, figures_of in figures["test"]["files"].items()
        for name, found in figures_of["classes"].items()
    ]
    return _table(["source", "class", "rows", "precision %", "recall %", "F1 %"], rows)


def _domain_table(figures: Mapping[str, Any]) -> str:
    rows = [
        [source, domain, f"{found['rows']:,}", _percent(found["accuracy"]), _range(found["accuracy_interval"])]
        for source, figures_of in figures["test"]["files"].items()
        for domain, found in figures_of.get("domains", {}).items()
    ]
    return _table(["source", "domain", "rows", "accuracy %", "95 % interval"], rows) if rows else ""


def _cells(found: Mapping[str, Any]) -> list[str]:
    accuracy = [_percent(found["accuracy"]), _range(found["accuracy_interval"])]
    return [f"{found['rows']:,}", *accuracy, _percent(found["macro_f1"]), f"{found['ece']:.3f}"]


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _range(bounds: tuple[float, float], *, signed: bool = False) -> str:
    low, high = bounds
    return f"{100 * low:+.2f} to {100 * high:+.2f}" if signed else f"{100 * low:.2f}–{100 * high:.2f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{html.escape(cell)}" for cell in head)]
    for row in rows:
        lines.append("<tr>" + "".join(map(_cell, row)))
    return "\n".join([*lines, "</table>"])


def _cell(text: str) -> str:
    return f'<td class="n">{text}' if _FIGURE.fullmatch(text) else f"<td>{html.escape(text)}"


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
    return [f"<figure>{picture}<figcaption>{html.escape(caption)}</figcaption></figure>" for picture, caption in shown]


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
        rows.append([concern, found["where"], _percent(found["share"]), _percent(found["limit"]), state])
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


def model_card(config: TrainConfig, figures: Mapping[str, Any]) -> str:
    """Markdown: what the model is, what it was made from, how good it is, what it is not for."""
    facts, model, made = figures["data"], config.model, figures["made_with"]
    by_label = ", ".join(f"{rows:,} {name}" for name, rows in facts["train_rows_by_label"].items())
    lines = [
        f"# Model card: {config.name}",
        "",
        f"{config.export.task.capitalize()} of Chinese text, the classes {', '.join(figures['labels'])}.",
        f"A {model.layers}-layer, {model.width}-wide encoder with mean pooling, up to {model.max_tokens} tokens "
        "(longer texts keep both ends).",
        "",
        "## Quality",
        "",
        verdict(figures),
        "",
        *_card_table(figures),
        f"Temperature {figures['calibration']['temperature']:.3f}, abstains below a confidence of "
        f"{figures['calibration']['abstain_threshold']:.3f}; both chosen on dev, where "
        f"{_percent(figures['calibration']['dev_coverage'])} % of the rows are answered and "
        f"{_percent(figures['calibration']['dev_accuracy_covered'])} % of those are right. {seeds_sentence(figures)}",
        "",
        "## Data",
        "",
        f"{facts['train_rows']:,} training rows ({by_label}), after dropping "
        f"{facts['train_repeats_dropped']:,} repeats, {facts['train_conflicts_dropped']:,} rows whose text has two "
        f"labels and {facts['train_leaked_dropped']:,} whose text is also in dev or test.{_made_up(facts)}",
        "",
        *(f"- **{name}**: {what}" for name, what in config.sources.items()),
        "",
        "## Limits",
        "",
        "It judges tone in texts like the ones above. It does not know irony, knows nothing after its data was "
        "collected, and its confidence means little on other kinds of text. Do not use it to judge people.",
        "",
        "## Made by",
        "",
        f"Seed {config.seed}, Python {made['python']}, torch {made['torch']}; every setting is in metrics.json next to "
        "this file.",
        "",
    ]
    return "\n".join(lines)


def _made_up(facts: Mapping[str, Any]) -> str:
    """What `[augment]` added, as a sentence; nothing for nothing."""
    added = facts["synthetic_rows"]
    if not added["generated"] + added["noisy_copies"]:
        return ""
    return (
        f" Added to them: {added['generated']:,} sentences made from templates and {added['noisy_copies']:,} copies of "
        "rows with typing noise."
    )


def _card_table(figures: Mapping[str, Any]) -> list[str]:
    if not figures["test"]:
        return []
    lines = [
        "| test | rows | accuracy % | 95 % interval | macro-F1 % | ECE | n-grams % |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in figures["test"]["files"].items():
        referee = _percent(figures["referee"]["test"][name]["accuracy"])
        lines.append(f"| {' | '.join([name, *_cells(found), referee])} |")
        if found.get("clean", {"rows": 0})["rows"]:  # the same without the rows that are in train, or nearly
            lines.append(f"| {' | '.join([f'{name}, clean rows', *_cells(found['clean']), ''])} |")
    return [*lines, ""]
