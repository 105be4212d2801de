"""Official and clean scores side by side: in the manifest's quote and the gate's table."""

from typing import Any

from lengnuan.training.report import Findings, _gate_table


def figures(accuracy: float, rows: int) -> dict[str, Any]:
    interval = (accuracy - 0.02, accuracy + 0.02)
    return {"rows": rows, "accuracy": accuracy, "accuracy_interval": interval, "macro_f1": accuracy, "ece": 0.01}


def metrics(clean: dict[str, Any] | None) -> dict[str, Any]:
    found = figures(0.95, 1200) | ({"clean": clean, "leaked": figures(0.99, 348)} if clean else {})
    return {
        "test": {"files": {"reviews": found}, "mean": {"accuracy": 0.95}},
        "referee": {"test": {"reviews": figures(0.9, 1200)}},
        "margin_over_referee": {"mean": {"margin": 0.05}},
    }


def test_the_manifest_quotes_the_clean_rows_beside_all() -> None:
    found = Findings(metrics(figures(0.93, 852)), {}, {"reviews": None}, {}).short()  # type: ignore[dict-item]
    assert (found["test"]["reviews"]["accuracy"], found["test"]["reviews"]["clean"]["accuracy"]) == (0.95, 0.93)


def test_without_a_leak_there_is_nothing_beside() -> None:
    for clean in (None, {"rows": 0}):
        assert "clean" not in Findings(metrics(clean), {}, {"reviews": None}, {}).short()["test"]["reviews"]  # type: ignore[dict-item]


def test_the_report_says_what_was_acknowledged() -> None:
    gate = {"concern": "leaked", "where": "test", "share": 0.29, "limit": 0.02, "past": True, "acknowledged": True}
    assert "past, acknowledged" in _gate_table({"gate": [gate]})
    assert "within" in _gate_table({"gate": [gate | {"past": False}]})
