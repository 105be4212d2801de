"""MODEL_CARD.md: what the model is, what it was made from, how good it is and how sure, its limits, what it cost.

Every figure comes from the run; what was not measured is said to be unknown.
"""

from collections.abc import Mapping
from typing import Any

from lengnuan.training.config import TrainConfig
from lengnuan.training.figures import SCORE_HEAD, percent, score_cells, span, verdict
from lengnuan.training.nonsense import KINDS
from lengnuan.training.spread import seeds_sentence

FEW_ROWS = 500  # test rows below which the interval is too wide to call a source well tested
GOOD_CALIBRATION = 0.02  # expected calibration error that we aim at


def model_card(config: TrainConfig, figures: Mapping[str, Any]) -> str:
    """Markdown, from the config and the content of metrics.json."""
    model, made = config.model, figures["made_with"]
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
        *_score_table(figures),
        *([seeds_sentence(figures), ""] if "seeds" in figures else []),
        "## Confidence",
        "",
        *_confidence(figures),
        "## Data",
        "",
        *_data(config, figures),
        "## Limits",
        "",
        *(f"- {limit}" for limit in _limits(figures)),
        "",
        "## Made by",
        "",
        f"Seed {config.seed}, Python {made['python']}, torch {made['torch']}; every setting is in metrics.json next to "
        "this file.",
        _cost(figures["effort"]),
        "",
    ]
    return "\n".join(lines)


def _markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]


def _score_table(figures: Mapping[str, Any]) -> list[str]:
    if not figures["test"]:
        return []
    rows = []
    for name, found in figures["test"]["files"].items():
        gap = figures["margin_over_referee"]["sources"][name]
        referee = percent(figures["referee"]["test"][name]["accuracy"])
        margin = f"{100 * gap['margin']:+.2f} ({span(gap['interval'], signed=True)})"
        rows.append([name, *score_cells(found), referee, margin])
        if found.get("clean", {"rows": 0})["rows"]:  # the same without the rows that are in train, or nearly
            rows.append([f"{name}, clean rows", *score_cells(found["clean"]), "", ""])
    return [
        *_markdown(["test", *SCORE_HEAD, "n-grams %", "margin (95 % interval)"], rows),
        "ECE: expected calibration error. By chance: what a perfectly calibrated model stays under 19 times in 20 on "
        f"so many rows. The n-grams are {figures['referee']['method']}.",
        "",
    ]


def _confidence(figures: Mapping[str, Any]) -> list[str]:
    found = figures["calibration"]
    wanted = found["wanted_accuracy"]
    lines = [
        f"Temperature {found['temperature']:.3f}, chosen on dev (ECE there {found['dev_ece_before']:.3f} before, "
        f"{found['dev_ece_after']:.3f} after).",
    ]
    if wanted is None:
        lines.append("It never abstains: no accuracy was asked for.")
    else:
        lines.append(
            f"It abstains below a confidence of {found['abstain_threshold']:.3f}, the lowest at which dev is "
            f"{percent(wanted)} % right: there {percent(found['dev_coverage'])} % of the rows are answered and "
            f"{percent(found['dev_accuracy_covered'])} % of those are right."
        )
    nonsense = figures["nonsense"]
    shares = ", ".join(f"{percent(nonsense[kind]['below_limit'])} % ({kind} characters)" for kind in KINDS)
    lines += [
        f"Random characters get a confidence under {nonsense['limit']:g} in {shares} of the cases; "
        f"{percent(nonsense['wanted_share'])} % of each is wanted: {'passed' if nonsense['passed'] else 'NOT passed'}.",
        "",
    ]
    return lines + (_markdown(*answered_table(figures)) if figures["test"] and wanted is not None else [])


def answered_table(figures: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: by test, what is answered at the bundle's own threshold and how much of that is right."""
    rows = []
    for name, of_test in figures["test"]["files"].items():
        found = of_test["answered"]
        right = "" if found["accuracy"] is None else percent(found["accuracy"])
        rows.append([name, percent(found["coverage"]), right, span(found["accuracy_interval"]) if right else ""])
    return ["test", "answered %", "right of those %", "95 % interval"], rows


def _data(config: TrainConfig, figures: Mapping[str, Any]) -> list[str]:
    facts = figures["data"]
    by_label = ", ".join(f"{rows:,} {name}" for name, rows in facts["train_rows_by_label"].items())
    counted = ("lines", "accepted", "blank", "rejected")
    files = [[found["path"], *(f"{found[key]:,}" for key in counted)] for found in facts["files"]]
    names = [*config.sources, *(name for name in config.data.train if name not in config.sources)]
    return [
        f"{facts['train_rows']:,} training rows ({by_label}), after dropping "
        f"{facts['train_repeats_dropped']:,} repeats, {facts['train_conflicts_dropped']:,} rows whose text has two "
        f"labels and {facts['train_leaked_dropped']:,} whose text is also in dev or test.{_made_up(facts)}",
        f"Their identity, a hash of the rows that were trained on: `{facts['identity']['train']}`; those of dev and "
        "test are in metrics.json.",
        "",
        *_markdown(["file", *counted], files),
        *(f"- **{name}**: {config.sources.get(name, 'not described')}{_licence(config, name)}" for name in names),
        "",
    ]


def _licence(config: TrainConfig, name: str) -> str:
    if name in config.licences:
        return f". Licence: {config.licences[name]}"
    return "" if "licen" in config.sources.get(name, "").lower() else ". Licence: not stated"


def _made_up(facts: Mapping[str, Any]) -> str:
    """What `[augment]` added, as a sentence; nothing for nothing."""
    added = facts["synthetic_rows"]
    kinds = {
        "generated": "sentences made from templates",
        "noisy_copies": "copies of rows with typing noise",
        "nonsense": "texts of random characters without a label",
    }
    parts = [f"{added[key]:,} {what}" for key, what in kinds.items() if added[key]]
    return f" Added to them: {', '.join(parts)}." if parts else ""


def _limits(figures: Mapping[str, Any]) -> list[str]:
    """What the figures themselves warn of, then what no figure shows."""
    limits = []
    files = figures["test"]["files"] if figures["test"] else {}
    if not files:
        limits.append("It was never judged on test rows: the dev figures chose the weights, so they flatter.")
    few = [f"{name} ({found['rows']:,})" for name, found in files.items() if found["rows"] < FEW_ROWS]
    if few:
        limits.append(f"Fewer than {FEW_ROWS} test rows, so wide intervals: {', '.join(few)}.")
    unsure = [
        f"{name} ({found['ece']:.3f})"
        for name, found in files.items()
        if found["ece"] > max(GOOD_CALIBRATION, found["ece_by_chance"])
    ]
    if unsure:
        limits.append(f"Its confidence is off by more than chance explains on: {', '.join(unsure)}.")
    cut = figures["data"]["tokens"]["train"]["truncated_share"]
    if cut:
        limits.append(f"{percent(cut)} % of the training texts were longer than the limit and lost their middle.")
    if not figures["nonsense"]["passed"]:
        limits.append("It is too sure of random characters: do not take its confidence for a sign of sense.")
    return [
        *limits,
        "It knows nothing after its data was collected and little of other kinds of text; `lengnuan-train drift` tells "
        "when texts have become so.",
        "It was not tested for fairness between groups of people. Do not use it to judge people.",
    ]


def _cost(effort: Mapping[str, Any]) -> str:
    if not effort["seconds"]:
        return "What it cost was not recorded."
    stages = ", ".join(f"{stage} {_time(seconds)}" for stage, seconds in effort["seconds"].items())
    energy = (
        "energy was not measured (the machine has no counter that this user may read)"
        if effort["joules"] is None
        else f"{effort['joules'] / 3.6e6:.4g} kWh of the processor packages (RAPL), other programs included"
    )
    return (
        f"Time: {stages}; {_time(effort['processor_seconds'])} of processor time; {energy}. On "
        f"{'; '.join(effort['hardware'])}. Parts of a run that were killed outright are not counted."
    )


def _time(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s" if rest >= 60 else f"{rest} s"
