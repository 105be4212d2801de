"""What the retraining job of deploy/ would run, run here on bundles made by hand: promotion, the way back, serving."""

import shutil
from pathlib import Path

import pytest
import yaml
from checks.tools import DEPLOY
from promotion_fixtures import lenient, write_rows, write_variant
from retraining_job import RETRAIN, arguments, cron_job, default_data, default_store, final_codes, pod_of

from lengnuan.model.bundle import Bundle
from lengnuan.model.store import load_bundle
from lengnuan.training import __main__ as command
from lengnuan.training import commands
from lengnuan.training.config import load_config, load_settings
from lengnuan.training.verdict import Limits

(TRAIN,) = pod_of("cronjob.yaml")["initContainers"]
(PROMOTE,) = pod_of("cronjob.yaml")["containers"]
(ROLL_BACK,) = pod_of("rollback.yaml")["containers"]


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Claims as folders, with frozen rows and the limits of deploy/."""
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "frozen.tsv")
    (tmp_path / "config").mkdir()
    shutil.copy(RETRAIN / "promotion.toml", tmp_path / "config")
    return tmp_path


def promote(cluster: Path, job: str, **pieces: float) -> int:
    """As the pod of that job does once a bundle is in its run folder."""
    write_variant(cluster / "runs" / job / "bundle", **pieces)
    return command.main([*arguments(PROMOTE, cluster, job), *lenient(), "--set", "max_negative_flip_share=1"])


def served(cluster: Path) -> str:
    """The version of the bundle that a pod with the component bundle-store loads."""
    content = (DEPLOY / "components" / "bundle-store" / "kustomization.yaml").read_text(encoding="utf-8")
    patch = yaml.safe_load(yaml.safe_load(content)["patches"][0]["patch"])
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    (where,) = [variable["value"] for variable in container["env"] if variable["name"] == "LENGNUAN_BUNDLE"]
    assert where.startswith(f"{container['volumeMounts'][0]['mountPath']}@")
    return load_bundle(Path(f"{cluster}{where}")).version


def made(cluster: Path, job: str) -> str:
    return Bundle.load(cluster / "runs" / job / "bundle").version


def test_what_a_job_promotes_is_served_and_a_worse_one_is_not(cluster: Path) -> None:
    assert promote(cluster, "first", 影=-3.0) == 0
    assert served(cluster) == made(cluster, "first")
    assert promote(cluster, "second", 影=3.0) == 0
    assert served(cluster) == made(cluster, "second")
    assert promote(cluster, "third", 影=-3.0) == 0, "rejected: no failure of the job"
    assert served(cluster) == made(cluster, "second")
    assert '"REJECT"' in (cluster / "runs" / "third" / "decision.json").read_text(encoding="utf-8")


def test_a_pod_that_starts_again_after_its_promotion_changes_nothing(cluster: Path) -> None:
    assert promote(cluster, "first", 影=3.0) == 0
    before = (cluster / "store" / "aliases" / "champion.json").read_bytes()
    assert promote(cluster, "first", 影=3.0) == 0
    assert (cluster / "store" / "aliases" / "champion.json").read_bytes() == before


def test_a_first_bundle_below_the_floor_is_not_served(cluster: Path) -> None:
    assert promote(cluster, "first", 好看=-3.0, 影=-3.0) == 0
    assert not (cluster / "store" / "aliases").exists()


def test_without_frozen_rows_the_job_fails_at_once(cluster: Path) -> None:
    (cluster / "data" / "frozen.tsv").unlink()
    assert promote(cluster, "first", 影=3.0) == 2
    assert 2 in final_codes()


def test_the_way_back_is_served_and_is_not_tried_twice(cluster: Path) -> None:
    for job, value in (("first", -3.0), ("second", 3.0)):
        assert promote(cluster, job, 影=value) == 0
    assert command.main(arguments(ROLL_BACK, cluster, "rollback")) == 0
    assert served(cluster) == made(cluster, "first")
    spec = cron_job("rollback.yaml")
    assert spec["suspend"] is True
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 0


def test_the_training_command_is_one_and_what_it_writes_is_what_is_promoted() -> None:
    training = commands._parser().parse_args(TRAIN["args"])
    promotion = commands._parser().parse_args(PROMOTE["args"])
    assert training.output == Path("/runs/$(JOB_NAME)")
    assert Path(promotion.candidate) == training.output / "bundle"
    for container in (TRAIN, PROMOTE, ROLL_BACK):
        assert container["command"] == ["lengnuan-train"]
    places = {mount["mountPath"] for mount in TRAIN["volumeMounts"]}
    assert {default_data(), str(training.config.parent), str(training.output.parent)} <= places
    assert training.data == Path("$(LENGNUAN_DATA)")
    assert promotion.data == [training.data / "frozen.tsv"]
    assert default_store() in {mount["mountPath"] for mount in PROMOTE["volumeMounts"]}


def test_the_configurations_of_the_job_are_ones() -> None:
    assert load_config(RETRAIN / "retrain.toml", []).name
    assert load_settings(Limits, RETRAIN / "promotion.toml", []).floor > 0.5


def test_on_a_gpu_the_training_refuses_a_cpu() -> None:
    content = (DEPLOY / "components" / "retrain-gpu" / "kustomization.yaml").read_text(encoding="utf-8")
    operations = yaml.safe_load(yaml.safe_load(content)["patches"][0]["patch"])
    added = [operation["value"] for operation in operations if operation["path"].endswith("/args/-")]
    found = commands._parser().parse_args([*TRAIN["args"], *added])
    assert load_config(RETRAIN / "retrain.toml", found.set).device == "cuda"
