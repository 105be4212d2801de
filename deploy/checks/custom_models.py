"""Run by the tools' Python: YAML objects on stdin, a line for each that its published model does not take."""

import sys
from types import SimpleNamespace

import yaml
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
from pydantic import ValidationError

MODULES = {
    "keda.sh/v1alpha1": keda,
    "monitoring.coreos.com/v1": prometheus_operator,
    "trainer.kubeflow.org/v1alpha1": SimpleNamespace(TrainJob=TrainerV1alpha1TrainJob),
}


def lost(given: object, kept: object, place: str) -> list[str]:
    """The fields that a model did not keep."""
    if isinstance(given, dict) and isinstance(kept, dict):
        found = []
        for key, value in given.items():
            found += lost(value, kept[key], f"{place}.{key}") if key in kept else [f"{place}.{key}: unknown field"]
        return found
    if isinstance(given, list) and isinstance(kept, list):
        pairs = enumerate(zip(given, kept, strict=True))
        return [line for index, (one, other) in pairs for line in lost(one, other, f"{place}[{index}]")]
    return []


def plain(document: object) -> object:
    """Without amounts of resources: Kubeflow's model of one takes no string."""
    if isinstance(document, dict):
        return {key: plain(value) for key, value in document.items() if key not in ("requests", "limits")}
    return [plain(part) for part in document] if isinstance(document, list) else document


def main() -> int:
    """Returns 1 if anything was printed."""
    found = []
    for document in map(plain, yaml.safe_load_all(sys.stdin)):
        name = f"{document['kind']}/{document['metadata']['name']}"
        model = getattr(MODULES.get(document["apiVersion"]), document["kind"], None)
        if model is None:
            found.append(f"{name}: no schema of {document['apiVersion']} {document['kind']}")
            continue
        try:
            kept = model.model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True)
        except ValidationError as error:
            found += [f"{name}.{'.'.join(map(str, part['loc']))}: {part['msg']}" for part in error.errors()]
        else:
            found += lost(document, kept, name)
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
