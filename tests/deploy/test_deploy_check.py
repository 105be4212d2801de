"""The checks of `make deploy-check`, each on something broken on purpose. They need the tools that it installs."""

import copy
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from checks import expressions, live, policy, render, schemas, tools

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(not tools.installed(), reason="the tools are missing: make deploy-check installs them"),
]
needs_prometheus = pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's prometheus is missing")


@pytest.fixture(scope="module")
def gpu() -> list[render.Object]:
    return render.objects(render.kustomized("gpu"))


def one(objects: list[render.Object], kind: str) -> Any:
    return copy.deepcopy(next(found for found in objects if found["kind"] == kind))


@pytest.fixture
def deploy_copy() -> Iterator[Path]:
    """A copy of deploy/ that a test may break, inside the repository: kustomize follows relative paths only."""
    folder = tools.ROOT / ".cache" / "deploy-broken"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(tools.DEPLOY, folder, symlinks=True)
    yield folder
    shutil.rmtree(folder)


def replace(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after), encoding="utf-8")


@pytest.mark.parametrize("name", render.CASES)
def test_kustomize_and_helm_render_the_same(name: str) -> None:
    objects = render.objects(render.kustomized(name))
    assert {"Deployment", "Service", "NetworkPolicy"} <= {found["kind"] for found in objects}
    assert render.differences(objects, render.objects(render.templated(name))) == []


def test_a_change_in_one_of_them_is_found(deploy_copy: Path) -> None:
    replace(deploy_copy / "base" / "service.yaml", "port: 80\n", "port: 81\n")
    objects = render.objects(render.kustomized("base", deploy_copy))
    found = render.differences(objects, render.objects(render.templated("base", deploy_copy)))
    assert found == ["Service/lengnuan.spec.ports[0].port: 81 in kustomize, 80 in Helm"]


@pytest.mark.parametrize("order", [("keys", "bundle-s3"), ("bundle-s3", "keys"), ("bundle-store", "keys")])
def test_no_component_drops_what_another_has_mounted(order: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(render.CASES, "-and-".join(order), render.Case(components=order))
    spec = one(render.objects(render.kustomized("-and-".join(order))), "Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {"LENGNUAN_BUNDLE", "LENGNUAN_KEYS_FILE"} <= {variable["name"] for variable in container["env"]}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert len(mounted) == 2
    assert mounted <= {volume["name"] for volume in spec["volumes"]}


def test_the_chart_refuses_a_store_that_the_service_can_t_read(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = ("bundle.from=store", "store.at=s3://models/lengnuan")
    monkeypatch.setitem(render.CASES, "wrong", render.Case(choices=choices))
    with pytest.raises(tools.ToolMissing, match="a store from a volume"):
        render.templated("wrong")


def test_the_patch_of_the_page_for_a_store_in_s3_fits_the_base() -> None:
    page = (tools.ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    render.kustomized("bundle-store")  # makes the folder and the way from there to the base
    file = render.SCRATCH / "bundle-store" / "kustomization.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8")) | {"components": []} | yaml.safe_load(block)
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    objects = render.objects(tools.must(tools.KUBECTL, "kustomize", file.parent))
    assert schemas.problems(objects) == []
    spec = one(objects, "Deployment")["spec"]["template"]["spec"]
    names = {mount["name"] for part in ("initContainers", "containers") for mount in spec[part][0]["volumeMounts"]}
    assert names == {volume["name"] for volume in spec["volumes"]}


def test_every_object_fits_its_schema(gpu: list[render.Object]) -> None:
    assert schemas.problems(gpu) == []


def test_a_misspelt_field_is_found(gpu: list[render.Object]) -> None:
    deployment = one(gpu, "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    (found,) = schemas.problems([deployment])
    assert "readynessProbe" in found


@pytest.mark.parametrize("kind", ["ScaledObject", "ServiceMonitor", "PrometheusRule"])
def test_a_misspelt_field_of_a_custom_resource_is_found(gpu: list[render.Object], kind: str) -> None:
    document = one(gpu, kind)
    document["spec"]["misspelt"] = 1
    assert schemas.problems([document]) == [f"{kind}/{document['metadata']['name']}.spec.misspelt: unknown field"]


def test_a_missing_field_of_a_custom_resource_is_found(gpu: list[render.Object]) -> None:
    document = one(gpu, "ScaledObject")
    del document["spec"]["triggers"]
    assert any("triggers" in line for line in schemas.problems([document]))


def test_a_kind_without_a_schema_is_found() -> None:
    document = {"apiVersion": "example.com/v1", "kind": "Unheard", "metadata": {"name": "a"}}
    assert any("Unheard" in line for line in schemas.problems([document]))


def test_kserve_s_fields_are_known_and_a_misspelt_one_is_found() -> None:
    objects = render.objects(tools.must(tools.KUBECTL, "kustomize", tools.DEPLOY / "kserve"))
    assert schemas.problems(objects) == []
    service = one(objects, "InferenceService")
    service["spec"]["predictor"]["model"]["storageUrl"] = "s3://a"
    assert schemas.problems([service]) == ["InferenceService/lengnuan.spec.predictor.model.storageUrl: unknown field"]


@pytest.mark.slow
def test_the_policy_linter_finds_a_privileged_container(gpu: list[render.Object]) -> None:
    deployment = one(gpu, "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert any("CKV_K8S_16)" in line for line in policy.violations([deployment]))


@needs_prometheus
def test_an_alert_that_can_t_fire_is_found(deploy_copy: Path, tmp_path: Path) -> None:
    rules = expressions.monitoring(deploy_copy) / "rules"
    for file in rules.glob("*.test.yaml"):
        if file.name != "replicas.test.yaml":
            file.unlink()
    assert expressions.promtool(tmp_path, deploy_copy) == []
    replace(rules / "alerts.yaml", "lengnuan_model_ready == 0", "lengnuan_model_ready == 2")
    assert any("LengnuanNotReady" in line for line in expressions.promtool(tmp_path, deploy_copy))
    replace(rules / "alerts.yaml", "lengnuan_model_ready == 2", "lengnuan_model_ready ==")
    assert any("LengnuanNotReady" in line for line in expressions.promtool(tmp_path, deploy_copy))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[live.Stage]:
    with live.staged(tmp_path_factory.mktemp("live") / "stage") as running:
        yield running


@needs_prometheus
@pytest.mark.slow
def test_a_panel_that_shows_nothing_is_found(stage: live.Stage) -> None:
    panels = {"good": "up", "unknown": "lengnuan_no_such_metric", "broken": "sum(", "undefined": "0 / 0 * up"}
    found = live.empty(stage, panels)
    assert [line.split(":")[0] for line in found] == ["unknown", "broken", "undefined"]


@needs_prometheus
@pytest.mark.slow
def test_a_metric_that_the_running_service_lacks_is_found(stage: live.Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        expressions, "every_expression", lambda: {"here": "lengnuan_queue_tokens + lengnuan_queue_tokenz"}
    )
    assert live.unexposed(stage) == ["here: the running service exposes no lengnuan_queue_tokenz"]


@needs_prometheus
@pytest.mark.slow
def test_scaling_that_no_load_would_start_is_found(stage: live.Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert live.scaling(stage, loaded=False) == []
    assert live.scaling(stage, loaded=True) == ["under load no trigger of KEDA passes its threshold"]
    monkeypatch.setattr(expressions, "scaling_expressions", lambda: {"two": ("up", 0.0)})
    assert live.scaling(stage, loaded=False)[0] == "two: 2 values instead of one"
