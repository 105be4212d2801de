"""`make deploy-check`: everything about deploy/ that can be checked without a cluster.

Prints a line a check and what is wrong; exit code 0 if nothing is, 1 if something is, 2 if a tool is missing. Nothing
here says that a cluster would run it: rendered objects are checked against schemas and policies, never deployed.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable
from functools import cache

from checks import expressions, live, policy, render, rolling, schemas, serving_images, training_image
from checks.tools import DEPLOY, KUBECTL, ROOT, ToolMissing, install, must

SCRATCH = ROOT / ".cache" / "deploy-check"
IMAGES = SCRATCH / "image"


@cache
def rendered() -> dict[str, list[render.Object]]:
    """Objects of every case by kustomize, those of KServe, and those of a training on several machines."""
    found = {name: render.objects(render.kustomized(name)) for name in render.CASES}
    found |= {name: render.objects(must(KUBECTL, "kustomize", DEPLOY / name)) for name in ("kserve", "training")}
    return found | {"trainjob": render.objects((DEPLOY / "training" / "trainjob.yaml").read_text(encoding="utf-8"))}


def same_objects() -> list[str]:
    """Both renderers give the same objects."""
    found = []
    for name in render.CASES:
        other = render.objects(render.templated(name))
        found += [f"{name}: {text}" for text in render.differences(rendered()[name], other)]
    return found


def valid_objects() -> list[str]:
    """Every object fits the schema of its kind."""
    return [f"{name}: {text}" for name, objects in rendered().items() for text in schemas.problems(objects)]


def policies() -> list[str]:
    """A linter's, and the image's user."""
    objects = [document for documents in rendered().values() for document in documents]
    return policy.violations(objects) + policy.users(ROOT / "Dockerfile", objects)


def known_metrics() -> list[str]:
    """Expressions use names and labels that the service has."""
    recorded = [rule["record"] for rule in expressions.rules() if "record" in rule]
    return expressions.unknown(expressions.every_expression(), expressions.service_metrics(), recorded)


def tested_rules() -> list[str]:
    """promtool, and that it tests every rule."""
    return expressions.untested() + expressions.promtool(SCRATCH / "promtool")


def image() -> list[str]:
    """The serving image, built and run."""
    return serving_images.cpu_problems(IMAGES)


def gpu_image() -> list[str]:
    """That for GPUs, without one."""
    return serving_images.gpu_problems(IMAGES)


def train_image() -> list[str]:
    """A retraining in the training image."""
    return training_image.problems(IMAGES)


def running() -> list[str]:
    """Service, Prometheus, Alertmanager."""
    return live.problems(SCRATCH / "live")


def rolling_update() -> list[str]:
    """Two replicas behind nginx, one after the other."""
    return rolling.problems(SCRATCH / "rolling")


CHECKS: dict[str, Callable[[], list[str]]] = {
    "kustomize and Helm agree": same_objects,
    "schemas": valid_objects,
    "policies": policies,
    "metrics exist": known_metrics,
    "rules, by promtool": tested_rules,
    "image serve-cpu: built, run, stopped": image,
    "image serve-gpu: built, run without a GPU": gpu_image,
    "image train: built, stopped, to a bundle": train_image,
    "live: scrape, dashboards, scaling, alert": running,
    "rolling update through nginx": rolling_update,
}


def main() -> int:
    """Run all checks, or those whose name holds a word of the command line."""
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", metavar="WORD", help="checks whose name holds this")
    words = parser.parse_args().only
    chosen = {name: check for name, check in CHECKS.items() if not words or any(word in name for word in words)}
    if not chosen:
        parser.error(f"no check is called so; there are: {', '.join(CHECKS)}")
    broken = False
    try:
        install()
        for name, check in chosen.items():
            begin = time.monotonic()
            found = check()
            broken = broken or bool(found)
            print(f"{'failed' if found else 'ok':8}{name:44}{time.monotonic() - begin:6.0f} s", flush=True)
            for line in found:
                print(f"        {line}", flush=True)
    except ToolMissing as error:
        logging.error("%s", error)
        return 2
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
