"""Every PromQL expression under deploy/: where it stands, and whether the names and labels in it exist."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from checks.tools import DEPLOY, run

from lengnuan.service.metrics import Metrics

Labels = frozenset[str]
# What Prometheus adds to a series of a pod.
TARGET: Labels = frozenset({"namespace", "pod", "job", "instance", "le"})
# What others expose, by their documentation: Prometheus itself, kube-state-metrics, the kubelet, NVIDIA's exporter.
OTHERS: dict[str, Labels] = {
    "up": frozenset(),
    "kube_job_failed": frozenset({"job_name", "condition"}),
    "kube_job_complete": frozenset({"job_name", "condition"}),
    "kube_job_status_active": frozenset({"job_name"}),
    "kube_cronjob_created": frozenset({"cronjob"}),
    "kube_cronjob_status_last_successful_time": frozenset({"cronjob"}),
    "container_cpu_usage_seconds_total": frozenset({"container"}),
    "container_memory_working_set_bytes": frozenset({"container"}),
    "DCGM_FI_DEV_FB_USED": frozenset({"exported_pod", "gpu"}),
    "DCGM_FI_DEV_FB_FREE": frozenset({"exported_pod", "gpu"}),
}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?(?!\s*\(|[\w:])")
_WORDS = frozenset({"and", "or", "unless", "offset", "bool", "by", "on"})


def monitoring(deploy: Path = DEPLOY) -> Path:
    """Where rules and dashboards are."""
    return deploy / "components" / "monitoring"


def rules(deploy: Path = DEPLOY) -> list[dict[str, Any]]:
    """Every rule of the PrometheusRules, in order."""
    files = sorted(set((monitoring(deploy) / "rules").glob("*.yaml")) - set(rule_tests(deploy)))
    specs = [yaml.safe_load(file.read_text(encoding="utf-8"))["spec"] for file in files]
    return [rule for spec in specs for group in spec["groups"] for rule in group["rules"]]


def rule_tests(deploy: Path = DEPLOY) -> list[Path]:
    """The test files for promtool."""
    return sorted((monitoring(deploy) / "rules").glob("*.test.yaml"))


def dashboard_expressions(deploy: Path = DEPLOY) -> dict[str, str]:
    """`file: panel (reference)` to expression."""
    found = {}
    for file in sorted((monitoring(deploy) / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                found[f"{file.name}: {panel['title']} ({target['refId']})"] = target["expr"]
    return found


def scaling_expressions(deploy: Path = DEPLOY) -> dict[str, tuple[str, float]]:
    """KEDA's queries and their thresholds a replica, by trigger."""
    file = deploy / "components" / "keda" / "scaledobject.yaml"
    triggers = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["triggers"]
    data = [trigger["metadata"] for trigger in triggers]
    return {f"keda trigger {i}": (entry["query"], float(entry["threshold"])) for i, entry in enumerate(data)}


def adapter_expressions(deploy: Path = DEPLOY) -> dict[str, str]:
    """The queries behind the HPA's metrics, as prometheus-adapter would put them for the pods of a namespace."""
    found = {}
    for rule in yaml.safe_load((deploy / "prometheus-adapter.yaml").read_text(encoding="utf-8"))["rules"]["custom"]:
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="lengnuan",pod=~".+"')
        found[rule["name"]["as"]] = query.replace("<<.GroupBy>>", "pod")
    return found


def every_expression(deploy: Path = DEPLOY) -> dict[str, str]:
    """All of them, by where they stand."""
    found = {f"rule {rule.get('alert') or rule['record']}": rule["expr"] for rule in rules(deploy)}
    scaling = {name: query for name, (query, _) in scaling_expressions(deploy).items()}
    return found | dashboard_expressions(deploy) | scaling | adapter_expressions(deploy)


def service_metrics(metrics: Metrics | None = None) -> dict[str, Labels]:
    """Name of every series that the service exposes, with the labels it gives them.

    A metric with labels has no samples before its first use, so the names come from the registry's own table.
    """
    registry = (metrics or Metrics()).registry
    known = {
        name: frozenset(getattr(metric, "_labelnames", ())) for name, metric in registry._names_to_collectors.items()
    }
    samples = (sample for family in registry.collect() for sample in family.samples)
    return {sample.name: frozenset(sample.labels) for sample in samples} | known


def series(expression: str) -> Iterator[tuple[str, Labels]]:
    """Metric names of an expression, each with the labels that it is selected by."""
    text = _GROUPING.sub(" ", _STRING.sub('""', expression))
    text = re.sub(r"\[[^\]]*\]", "", text)
    text = re.sub(r"\boffset\s+\w+", "", text)
    for name, inside in _SELECTOR.findall(text):
        if name not in _WORDS:
            yield name, frozenset(re.findall(r"(\w+)\s*(?:=|!=|=~|!~)", inside))


def unknown(expressions: Mapping[str, str], exposed: Mapping[str, Labels], recorded: Iterable[str]) -> list[str]:
    """Names and labels that nobody gives, by where they stand."""
    known = dict(exposed) | OTHERS | {name: frozenset({"label"}) for name in recorded}
    found = []
    for place, expression in expressions.items():
        for name, labels in series(expression):
            if name not in known:
                found.append(f"{place}: no metric {name}")
            else:
                found += [f"{place}: {name} has no label {label}" for label in sorted(labels - known[name] - TARGET)]
    return found


def unpack_rules(folder: Path, deploy: Path = DEPLOY) -> list[Path]:
    """The PrometheusRules as files that Prometheus reads, and the tests beside them; returns the former."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for file in sorted((monitoring(deploy) / "rules").glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        if not file.name.endswith(".test.yaml"):
            text = yaml.safe_dump(yaml.safe_load(text)["spec"], allow_unicode=True, sort_keys=False)
            written.append(folder / file.name)
        (folder / file.name).write_text(text, encoding="utf-8")
    return written


def promtool(folder: Path, deploy: Path = DEPLOY) -> list[str]:
    """`promtool check rules`, then `promtool test rules` on every test file."""
    files = unpack_rules(folder, deploy)
    done = [run("promtool", "check", "rules", *files)]
    done += [run("promtool", "test", "rules", folder / file.name) for file in rule_tests(deploy)]
    return [line for one in done if one.returncode for line in (one.stdout + one.stderr).splitlines() if line.strip()]


def untested(deploy: Path = DEPLOY) -> list[str]:
    """Alerts without a test in which they fire and one in which they do not, and records that no test evaluates."""
    cases = [case for file in rule_tests(deploy) for case in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]]
    alerts = [test for case in cases for test in case.get("alert_rule_test", [])]
    fires = {test["alertname"] for test in alerts if test["exp_alerts"]}
    quiet = {test["alertname"] for test in alerts if not test["exp_alerts"]}
    evaluated = {
        name for case in cases for test in case.get("promql_expr_test", []) for name, _ in series(test["expr"])
    }
    found = []
    for rule in rules(deploy):
        if "record" in rule:
            found += [] if rule["record"] in evaluated else [f"{rule['record']}: no test evaluates it"]
        else:
            found += [] if rule["alert"] in fires else [f"{rule['alert']}: no test in which it fires"]
            found += [] if rule["alert"] in quiet else [f"{rule['alert']}: no test in which it does not fire"]
    return found
