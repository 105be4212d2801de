"""Policies: checkov's on the rendered objects, and the image's user against theirs."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from checks.render import Object
from checks.tools import PYTHON, ROOT, run

EXCEPTIONS = {
    "CKV_K8S_43": "a digest exists once the image is pushed somewhere; docs/deploy.md says how to set it",
    "CKV_K8S_15": "tags are not reused, and a node that can't reach the registry should still restart its pods",
    "CKV_K8S_35": "the fetching script reads the three AWS_* variables, as every other S3 client does; it then ends",
}


def violations(documents: list[Object]) -> list[str]:
    """Failed checks of checkov other than the exceptions, and exceptions that nothing needs any more."""
    file = ROOT / ".cache" / "deploy-render" / "policy.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    command = [
        PYTHON.with_name("checkov"),
        "-f",
        file,
        "--framework",
        "kubernetes",
        "--compact",
        "--quiet",
        "-o",
        "json",
    ]
    done = run(*command)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
        failed, passed = report["results"]["failed_checks"], report["summary"]["passed"]
    except (ValueError, KeyError, TypeError):
        return [f"checkov gave no report: {(done.stderr or done.stdout).strip()[-400:]}"]
    if not passed:
        return ["checkov checked nothing"]
    needed = {check["check_id"] for check in failed}
    found = [f"{name}: an exception that nothing needs" for name in sorted(EXCEPTIONS.keys() - needed)]
    for check in failed:
        if check["check_id"] not in EXCEPTIONS:
            found.append(f"{check['resource']}: {check['check_name']} ({check['check_id']})")
    return found


def image_user(dockerfile: Path) -> int | None:
    """The numeric user of the last stage; None where it has none, or a name that Kubernetes can't tell from root."""
    user = None
    for line in dockerfile.read_text(encoding="utf-8").splitlines():
        if line.startswith("FROM "):
            user = None
        if given := re.match(r"USER\s+(\S+)", line):
            number = given[1].split(":")[0]
            user = int(number) if number.isdigit() else None
    return user


def users(dockerfile: Path, documents: list[Object]) -> list[str]:
    """Images and pods that would run as root, and pods that run as somebody else than the image."""
    user = image_user(dockerfile)
    if not user:
        return [f"{dockerfile.name}: the image runs as root, or as a user without a number"]
    found = []
    for document in documents:
        for spec in _pods(document):
            context = spec.get("securityContext", {})
            if context.get("runAsNonRoot") is not True or context.get("runAsUser") != user:
                name = f"{document['kind']}/{document['metadata']['name']}"
                found.append(f"{name}: runs as {context.get('runAsUser')}, the image as {user}")
    return found


def _pods(value: Any) -> list[dict[str, Any]]:
    """Every pod specification inside an object."""
    if isinstance(value, dict):
        inside = [spec for item in value.values() for spec in _pods(item)]
        return [value, *inside] if "containers" in value and "serviceAccountName" in value else inside
    return [spec for item in value for spec in _pods(item)] if isinstance(value, list) else []
