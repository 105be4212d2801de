"""What deploy/ says against what the code is: settings, routes, exit codes, the image. Needs no tool."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from checks import expressions, policy, render
from checks.tools import DEPLOY, ROOT

from lengnuan.service.app import create_app
from lengnuan.service.settings import PREFIX, Settings
from lengnuan.training import commands, errors

RETRAIN_JOBS = ("cronjob", "rollback")
NO_TEMPLATES = [file for file in DEPLOY.rglob("*.yaml") if "templates" not in file.parts]


def first(path: str) -> Any:
    return next(yaml.safe_load_all((DEPLOY / path).read_text(encoding="utf-8")))


def settings_file() -> dict[str, str]:
    lines = (DEPLOY / "base" / "settings.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


def pod() -> Any:
    return first("base/deployment.yaml")["spec"]["template"]["spec"]


def retrain_job() -> Any:
    return first("components/retrain/cronjob.yaml")["spec"]["jobTemplate"]["spec"]


def serve_patch(component: str) -> Any:
    """What a component adds to the service's container."""
    (patch,) = first(f"components/{component}/kustomization.yaml")["patches"]
    spec = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]
    return spec["containers"][0]


def test_every_yaml_and_json_file_can_be_read() -> None:
    assert len(NO_TEMPLATES) > 20
    for file in NO_TEMPLATES:
        assert any(yaml.safe_load_all(file.read_text(encoding="utf-8"))), file
    for file in DEPLOY.rglob("*.json"):
        assert json.loads(file.read_text(encoding="utf-8"))["panels"], file


def test_the_settings_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = first("overlays/gpu/kustomization.yaml")["configMapGenerator"][0]["literals"]
    given = settings_file() | dict(literal.split("=", 1) for literal in gpu)
    added = [variable for name in ("bundle-store", "keys") for variable in serve_patch(name)["env"]]
    given |= {variable["name"]: variable["value"] for variable in added}
    assert {name.removeprefix(PREFIX).lower() for name in given} <= Settings.model_fields.keys()
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert Settings.from_command_line([]).device == "cuda"


def test_the_grace_period_covers_prestop_drain_and_shutdown() -> None:
    given = settings_file()
    stop = pod()["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = stop + float(given["LENGNUAN_DRAIN_DELAY_S"]) + float(given["LENGNUAN_SHUTDOWN_TIMEOUT_S"])
    assert pod()["terminationGracePeriodSeconds"] > needed
    values = first("chart/values.yaml")
    assert {key: str(value) for key, value in values["settings"].items()} == given
    assert values["termination"] == {"preStop": stop, "grace": pod()["terminationGracePeriodSeconds"]}


@pytest.mark.parametrize("file", ["base/deployment.yaml", "kserve/servingruntime.yaml"])
def test_probes_ask_routes_of_the_service_on_its_port(file: str) -> None:
    spec = first(file)["spec"]
    container = spec.get("template", {}).get("spec", spec)["containers"][0]
    routes = {getattr(route, "path", "") for route in create_app(Settings()).routes}
    asked = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {kind: get["path"] for kind, get in asked.items()} == {
        "startup": "/startupz",
        "readiness": "/readyz",
        "liveness": "/livez",
    }
    assert {get["path"] for get in asked.values()} <= routes
    assert {port["containerPort"] for port in container["ports"]} == {int(settings_file()["LENGNUAN_PORT"])}
    assert {get["port"] for get in asked.values()} <= {"http", 8000}


def test_pods_run_as_the_image_s_user() -> None:
    objects = [first("base/deployment.yaml"), *(first(f"components/retrain/{name}.yaml") for name in RETRAIN_JOBS)]
    assert policy.users(ROOT / "Dockerfile", objects) == []


@pytest.mark.parametrize("line", ["USER 0:0", "USER root", ""])
def test_a_root_user_in_the_image_is_found(line: str, tmp_path: Path) -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (tmp_path / "Dockerfile").write_text(re.sub("(?m)^USER .*$", line, text), encoding="utf-8")
    (found,) = policy.users(tmp_path / "Dockerfile", [first("base/deployment.yaml")])
    assert "root" in found


def test_a_pod_that_runs_as_somebody_else_is_found() -> None:
    deployment = first("base/deployment.yaml")
    deployment["spec"]["template"]["spec"]["securityContext"]["runAsUser"] = 1
    assert policy.users(ROOT / "Dockerfile", [deployment]) == ["Deployment/lengnuan: runs as 1, the image as 10001"]


def test_the_components_of_the_service_can_be_put_together_in_any_order() -> None:
    """A list that one of them replaced would drop what another has put there."""
    for name in ("bundle-image", "bundle-pvc", "bundle-s3", "bundle-store", "keys"):
        assert "target" not in first(f"components/{name}/kustomization.yaml")["patches"][0], name
        container = serve_patch(name)
        assert container["name"] == pod()["containers"][0]["name"]
        assert all(mount["readOnly"] for mount in container["volumeMounts"])
        (variable,) = [entry["value"] for entry in container["env"] if entry["name"] != "LENGNUAN_WATCH_S"]
        assert variable.startswith(container["volumeMounts"][0]["mountPath"])


def test_the_job_s_example_is_the_config_of_make_retrain() -> None:
    example = (DEPLOY / "components" / "retrain" / "retrain.toml").read_bytes()
    assert example == (ROOT / "training" / "configs" / "retrain.toml").read_bytes()


def test_the_failure_policy_knows_every_exit_code_of_training() -> None:
    rules = {rule["action"]: rule for rule in retrain_job()["podFailurePolicy"]["rules"]}
    assert all("containerName" not in rule.get("onExitCodes", {}) for rule in rules.values()), "of both containers"
    final = set(rules["FailJob"]["onExitCodes"]["values"])
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    # A base, what goes on when it is started again, and what only resume-proof and drift end with.
    kinds -= {errors.TrainingError, errors.Interrupted, errors.StoreBusy, errors.ProcessLost}
    kinds -= {errors.ResumeDiffers, errors.DriftFound}
    assert final >= {kind.exit_code for kind in kinds}
    assert rules["Count"]["onExitCodes"]["values"] == [errors.Interrupted.exit_code]
    assert final.isdisjoint({0, errors.Interrupted.exit_code, errors.StoreBusy.exit_code})


def test_a_training_on_several_machines_goes_on_after_the_same_exit_codes_and_when_a_process_is_lost() -> None:
    one, several = retrain_job()["podFailurePolicy"], first("training/job.yaml")["spec"]["podFailurePolicy"]
    rules = [{rule["action"]: rule for rule in policy["rules"]} for policy in (one, several)]
    final, goes_on = ([rule[action]["onExitCodes"]["values"] for rule in rules] for action in ("FailJob", "Count"))
    assert final[0] == final[1]
    assert goes_on[1] == [errors.ProcessLost.exit_code, *goes_on[0]]


def test_a_training_on_several_machines_has_what_torchrun_would_set() -> None:
    job = first("training/job.yaml")
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    given = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert given.keys() >= {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    assert job["spec"]["completionMode"] == "Indexed"
    assert {str(job["spec"][key]) for key in ("completions", "parallelism")} == {given["WORLD_SIZE"]}
    service = first("training/network.yaml")
    assert given["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{spec['subdomain']}"
    assert spec["subdomain"] == service["metadata"]["name"]
    assert str(service["spec"]["ports"][0]["port"]) == given["MASTER_PORT"]
    assert spec["securityContext"]["runAsUser"] == policy.image_user(ROOT / "Dockerfile")


def test_both_trainings_on_several_machines_give_the_same_command() -> None:
    (container,) = first("training/job.yaml")["spec"]["template"]["spec"]["containers"]
    trainer = first("training/trainjob.yaml")["spec"]["trainer"]
    assert trainer["args"] == container["args"]
    assert trainer["command"] == ["torchrun", "-m", "lengnuan.training"]
    assert (DEPLOY / "training" / "train.toml").read_bytes() == (
        DEPLOY / "components" / "retrain" / "retrain.toml"
    ).read_bytes()
    arguments = commands._parser().parse_args(container["args"])
    places = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(arguments.data.parent), str(arguments.config.parent)} <= places


def test_hpa_adapter_and_keda_agree() -> None:
    metrics = [metric["pods"] for metric in first("components/hpa/horizontalpodautoscaler.yaml")["spec"]["metrics"]]
    assert [metric["metric"]["name"] for metric in metrics] == list(expressions.adapter_expressions())
    wanted = [float(metric["target"]["averageValue"]) for metric in metrics]
    assert wanted == [limit for _, limit in expressions.scaling_expressions().values()]


def test_a_difference_between_the_renderings_is_named() -> None:
    one, other = first("base/deployment.yaml"), first("base/deployment.yaml")
    other["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    (found,) = render.differences([one], [other])
    assert found == "Deployment/lengnuan.spec.template.spec.terminationGracePeriodSeconds: 40 in kustomize, 1 in Helm"
    assert render.differences([one], []) == ["Deployment/lengnuan: only kustomize has it"]


def test_a_settings_hash_is_no_difference_and_a_setting_is() -> None:
    def config(name: str, value: str) -> Any:
        return {"kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": value}}

    assert render.differences([config("lengnuan-h8mdmgk8md", "1")], [config("lengnuan", "1")]) == []
    (found,) = render.differences([config("lengnuan-h8mdmgk8md", "1")], [config("lengnuan", "2")])
    assert "ConfigMap/lengnuan.data.a" in found


def test_no_file_and_no_function_of_the_checks_is_too_long() -> None:
    for file in DEPLOY.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 300, file
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 50, node.name
