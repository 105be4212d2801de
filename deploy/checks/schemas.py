"""Objects against the schemas of their kinds: Kubernetes' own strictly, custom ones by what their makers publish.

A custom resource has no schema in Kubernetes, and kubernetes-validate only warns of it. The Prometheus operator's,
KEDA's (cloudcoil) and Kubeflow Trainer's come as pydantic models, which let an unknown field pass: what a model has
read is written out again and has to be what was put in. KServe's come as tables of fields in its Python client. Kinds
that nothing knows fail.
"""

import ast
import functools
import re
from pathlib import Path
from typing import Any

import yaml
from checks.render import Object
from checks.tools import PYTHON, ROOT, run, site_packages

CUSTOM = ("monitoring.coreos.com", "keda.sh", "trainer.kubeflow.org")
KSERVE = "serving.kserve.io"
_KSERVE_MODELS = "kserve/models"


def problems(documents: list[Object]) -> list[str]:
    """What no API server would take, or would drop in silence."""
    custom = [document for document in documents if _group(document) in CUSTOM]
    served = [document for document in documents if _group(document) == KSERVE]
    plain = [document for document in documents if document not in custom and document not in served]
    found = [*_strict(plain), *_models(custom)]
    for document in served:
        kind = f"{document['apiVersion'].split('/')[1].capitalize()}{document['kind']}"
        found += [f"{_name(document)}{text}" for text in _fields(document, kind, "")]
    return found


def _group(document: Object) -> str:
    return str(document["apiVersion"].split("/")[0])


def _name(document: Object) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def _strict(documents: list[Object]) -> list[str]:
    """kubernetes-validate; a kind that it does not know is a problem too."""
    if not documents:
        return []
    file = ROOT / ".cache" / "deploy-render" / "strict.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    done = run(PYTHON.with_name("kubernetes-validate"), "--strict", file)
    lines = (done.stdout + done.stderr).splitlines()
    found = [line.replace(str(file), "").strip() for line in lines if not line.startswith("INFO")]
    return found or ([f"kubernetes-validate ended with {done.returncode}"] if done.returncode else [])


def _models(documents: list[Object]) -> list[str]:
    if not documents:
        return []
    done = run(PYTHON, Path(__file__).with_name("custom_models.py"), text=yaml.safe_dump_all(documents))
    return done.stdout.splitlines() or ([done.stderr.strip()[-400:]] if done.returncode else [])


def _fields(value: Any, kind: str, place: str) -> list[str]:
    """Against a type of KServe's client; `V1...` types are Kubernetes' own, of which only containers are followed."""
    if kind == "list[V1Container]":
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "runtime"}, "spec": {"containers": value}}
        return _strict([pod])
    if kind.startswith("list["):
        found = []
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            found += _fields(item, kind[5:-1], f"{place}[{index}]")
        return found if isinstance(value, list) else [f"{place}: not a list"]
    if kind in ("str", "int", "bool"):
        right = type(value).__name__ == kind
        return [] if right else [f"{place}: {value!r} is not of type {kind}"]
    types = _kserve_types(kind)
    if types is None:
        return []
    if not isinstance(value, dict):
        return [f"{place}: not an object"]
    found = [f"{place}.{key}: unknown field" for key in value if key not in types]
    for key in value.keys() & types.keys():
        found += _fields(value[key], types[key], f"{place}.{key}")
    return sorted(found)


@functools.cache
def _kserve_types(kind: str) -> dict[str, str] | None:
    """JSON name to type of one of KServe's types; None for a type of somebody else. Read, not imported."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()
    file = site_packages() / _KSERVE_MODELS / f"{snake}.py"
    if not file.exists():
        return None
    tables = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict):
            tables[node.targets[0].id] = ast.literal_eval(node.value)
    return {tables["attribute_map"][name]: kind for name, kind in tables["openapi_types"].items()}
