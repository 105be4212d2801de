"""The commands of the retraining job as deploy/ states them, for folders of a test."""

from pathlib import Path
from typing import Any

import yaml
from checks.tools import DEPLOY

RETRAIN = DEPLOY / "components" / "retrain"


def cron_job(file: str) -> Any:
    """A CronJob of the component."""
    return yaml.safe_load((RETRAIN / file).read_text(encoding="utf-8"))["spec"]


def pod_of(file: str) -> Any:
    """The pod of its jobs."""
    return cron_job(file)["jobTemplate"]["spec"]["template"]["spec"]


def final_codes() -> set[int]:
    """The exit codes after which the retraining job is not tried again."""
    rules = cron_job("cronjob.yaml")["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    (final,) = [rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "FailJob"]
    return set(final)


def default_store() -> str:
    """Where the store is if nobody says otherwise."""
    return (RETRAIN / "store.env").read_text(encoding="utf-8").strip().removeprefix("LENGNUAN_STORE=")


def default_data() -> str:
    """Where the rows are if nobody says otherwise."""
    return (RETRAIN / "data.env").read_text(encoding="utf-8").strip().removeprefix("LENGNUAN_DATA=")


def arguments(container: Any, root: Path, job: str, data: str = "") -> list[str]:
    """What Kubernetes would start the container with, its mounts being folders under `root`; `data`: rows in S3."""
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    for place in mounts:
        (root / place[1:]).mkdir(parents=True, exist_ok=True)
    found = []
    for given in container["args"]:
        word = given.replace("$(JOB_NAME)", job).replace("$(LENGNUAN_STORE)", default_store())
        word = word.replace("$(LENGNUAN_DATA)", data or default_data())
        found.append(f"{root}{word}" if word.startswith(tuple(mounts)) else word)
    return found
