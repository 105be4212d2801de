"""What would be applied: kustomize's objects and Helm's, and whether they are the same."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from checks.tools import DEPLOY, HELM, KUBECTL, ROOT, must

Object = dict[str, Any]
SCRATCH = ROOT / ".cache" / "deploy-render"
NAME = "lengnuan"
# kustomize ends the name of a ConfigMap with a hash of its content; Helm puts one into an annotation.
HASH = re.compile(r"-[2456789bcdfghkmt]{10}$")
CHECKSUM = "checksum/settings"


@dataclass(frozen=True)
class Case:
    """One way to deploy, in both languages.

    Args:
        overlay: folder of a kustomization; or "" for the base with components.
        components: put on the base.
        values: file of the chart's values; or "".
        choices: Helm's `--set`.
    """

    overlay: str = ""
    components: tuple[str, ...] = ()
    values: str = ""
    choices: tuple[str, ...] = ()


_PLAIN = ("autoscaling.by=none", "monitoring.enabled=false")
CASES = {
    "cpu": Case(overlay="overlays/cpu"),
    "gpu": Case(overlay="overlays/gpu", values="gpu.yaml"),
    "single-node": Case(overlay="overlays/single-node", values="single-node.yaml"),
    "base": Case(choices=_PLAIN),
    "bundle-pvc": Case(components=("bundle-pvc",), choices=(*_PLAIN, "bundle.from=pvc")),
    "bundle-image": Case(components=("bundle-image",), choices=(*_PLAIN, "bundle.from=image")),
    "bundle-s3": Case(components=("bundle-s3",), choices=(*_PLAIN, "bundle.from=s3")),
    "bundle-store": Case(components=("bundle-store",), choices=(*_PLAIN, "bundle.from=store")),
    "keys": Case(components=("keys",), choices=(*_PLAIN, "keys.secret=lengnuan-keys")),
    # kustomize puts what a later component adds before what is there; the chart has the bundle first.
    "keys and bundle-s3": Case(
        components=("keys", "bundle-s3"), choices=(*_PLAIN, "bundle.from=s3", "keys.secret=lengnuan-keys")
    ),
    "retrain": Case(components=("retrain",), choices=(*_PLAIN, "retrain.enabled=true")),
    "retrain-gpu": Case(components=("retrain", "retrain-gpu"), values="retrain-gpu.yaml", choices=_PLAIN),
    "retrain-s3": Case(
        components=("retrain", "retrain-s3"),
        choices=(*_PLAIN, "retrain.enabled=true", "store.at=s3://models/lengnuan"),
    ),
    "retrain-data-s3": Case(
        components=("retrain", "retrain-data-s3"),
        choices=(*_PLAIN, "retrain.enabled=true", "retrain.data=s3://training/lengnuan"),
    ),
    "retrain, all in S3": Case(
        components=("retrain", "retrain-data-s3", "retrain-s3"),
        choices=(
            *(*_PLAIN, "retrain.enabled=true"),
            *("retrain.data=s3://training/lengnuan", "store.at=s3://models/lengnuan"),
        ),
    ),
}


def objects(text: str) -> list[Object]:
    """The objects of a YAML stream."""
    return [document for document in yaml.safe_load_all(text) if document]


def kustomized(name: str, deploy: Path = DEPLOY) -> str:
    """YAML of one case by kustomize."""
    case = CASES[name]
    if case.overlay:
        return must(KUBECTL, "kustomize", deploy / case.overlay)
    folder = SCRATCH / name
    folder.mkdir(parents=True, exist_ok=True)
    up = Path(*[".."] * len(folder.relative_to(ROOT).parts)) / deploy.relative_to(ROOT)
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAME,
        "resources": [str(up / "base")],
        "components": [str(up / "components" / part) for part in case.components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return must(KUBECTL, "kustomize", folder)


def templated(name: str, deploy: Path = DEPLOY) -> str:
    """YAML of one case by Helm."""
    case = CASES[name]
    chart = deploy / "chart"
    files = ["--values", str(chart / "values" / case.values)] if case.values else []
    choices = [part for choice in case.choices for part in ("--set", choice)]
    return must(HELM, "template", NAME, chart, "--namespace", NAME, *files, *choices)


def differences(left: list[Object], right: list[Object]) -> list[str]:
    """Where two renderings differ, other than in how they mark a change of settings; both values are named."""
    one, other = _by_name(left), _by_name(right)
    found = [f"{key}: only kustomize has it" for key in sorted(one.keys() - other.keys())]
    found += [f"{key}: only Helm has it" for key in sorted(other.keys() - one.keys())]
    for key in sorted(one.keys() & other.keys()):
        found += [f"{key}{place}: {a} in kustomize, {b} in Helm" for place, a, b in _walk(one[key], other[key], "")]
    return found


def _by_name(documents: list[Object]) -> dict[str, Object]:
    hashed = {
        d["metadata"]["name"] for d in documents if d["kind"] == "ConfigMap" and HASH.search(d["metadata"]["name"])
    }
    plain = [_unmarked(document, hashed) for document in documents]
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in plain}


def _unmarked(value: Any, hashed: set[str]) -> Any:
    if isinstance(value, dict):
        kept = {key: _unmarked(item, hashed) for key, item in value.items() if key != CHECKSUM}
        return {key: item for key, item in kept.items() if key != "annotations" or item}
    if isinstance(value, list):
        return [_unmarked(item, hashed) for item in value]
    return HASH.sub("", value) if isinstance(value, str) and value in hashed else value


def _walk(a: Any, b: Any, place: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys(), key=str):
            yield from _walk(a.get(key), b.get(key), f"{place}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _walk(left, right, f"{place}[{index}]")
    elif a != b:
        yield place, _short(a), _short(b)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
