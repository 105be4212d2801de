"""Alerts, dashboards and scaling against the metrics that the service has. Needs no tool."""

import re

import pytest
from checks import expressions
from checks.expressions import series, unknown
from checks.tools import ROOT

from lengnuan.service.families import Families

RUNBOOK = ROOT / "docs" / "runbooks" / "alerts.md"
ALERTS = [rule for rule in expressions.rules() if "alert" in rule]
RECORDED = [rule["record"] for rule in expressions.rules() if "record" in rule]


def test_every_expression_uses_metrics_and_labels_that_exist() -> None:
    assert len(expressions.every_expression()) > 80
    assert unknown(expressions.every_expression(), expressions.service_metrics(), RECORDED) == []


@pytest.mark.parametrize(("kind", "name"), [("gauge", "queue_tokens"), ("counter", "predictions")])
def test_a_metric_renamed_in_the_service_is_found(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(Families, kind)

    def renamed(self: Families, given: str, *rest: str) -> object:
        return original(self, f"{given}_renamed" if given == name else given, *rest)

    monkeypatch.setattr(Families, kind, renamed)
    found = unknown(expressions.every_expression(), expressions.service_metrics(), RECORDED)
    assert found
    assert all(f"no metric lengnuan_{name}" in line for line in found)


def test_a_label_that_a_metric_has_not_is_found() -> None:
    exposed = expressions.service_metrics()
    assert unknown({"here": 'lengnuan_items_total{result="ok"}'}, exposed, []) == [
        "here: lengnuan_items_total has no label result"
    ]


def test_names_are_found_among_functions_strings_and_groupings() -> None:
    expression = (
        'sum by (pod) (rate(a_total{x="b{c}",y=~"d"}[5m])) / on (pod) group_left (z) (e offset 1w) > bool 0.5 and f:g'
    )
    assert dict(series(expression)) == {"a_total": {"x", "y"}, "e": set(), "f:g": set()}


def test_every_rule_has_a_test_and_every_alert_one_of_each_kind() -> None:
    assert len(ALERTS) > 15
    assert expressions.untested() == []


def test_every_alert_has_a_section_in_the_runbook_and_leads_there() -> None:
    sections = re.findall(r"^## (Lengnuan\w+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(sections) == sorted(alert["alert"] for alert in ALERTS)
    for alert in ALERTS:
        path = RUNBOOK.relative_to(ROOT).as_posix()
        assert alert["annotations"]["runbook"] == f"{path}#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_recorded_rules_are_used() -> None:
    used = {name for expression in expressions.every_expression().values() for name, _ in series(expression)}
    assert [name for name in RECORDED if name not in used] == []
