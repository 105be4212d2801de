"""The pod of deploy/'s retraining job from rows to the store, on a model of a few hundred weights."""

import json
import shutil
from pathlib import Path

import pytest
from promotion_fixtures import lenient
from retraining_job import arguments, final_codes, pod_of
from s3_server import put, s3_server
from small_runs import SMALL_TOML, sentences, write_tsv

from lengnuan.model.bundle import Bundle
from lengnuan.model.store import load_bundle
from lengnuan.training import __main__ as command

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Claims as folders: rows to learn from, others to compare on, the two configurations."""
    write_tsv(tmp_path / "data" / "train.tsv", sentences(200))
    write_tsv(tmp_path / "data" / "frozen.tsv", sentences(100, seed=1))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "retrain.toml").write_text(SMALL_TOML, encoding="utf-8")
    (tmp_path / "config" / "promotion.toml").write_text("floor = 0.6\n", encoding="utf-8")
    return tmp_path


def start_pod(cluster: Path, job: str, data: str = "") -> list[int]:
    """The exit codes of its containers, one after the other, as long as they end well; `data`: rows in S3."""
    pod = pod_of("cronjob.yaml")
    codes = []
    for container, options in ((pod["initContainers"][0], []), (pod["containers"][0], lenient())):
        codes.append(command.main([*arguments(container, cluster, job, data), *options]))
        if codes[-1]:
            break
    return codes


def test_a_pod_trains_and_promotes_and_its_successor_finds_all_of_it_done(cluster: Path) -> None:
    assert start_pod(cluster, "weekly-1") == [0, 0]
    served = load_bundle(Path(f"{cluster / 'store'}@champion"))
    assert served.version == Bundle.load(cluster / "runs" / "weekly-1" / "bundle").version
    weights = (cluster / "runs" / "weekly-1" / "best.safetensors").stat()
    # The same job's next pod, after an eviction between the promotion and the end: it trains nothing.
    assert start_pod(cluster, "weekly-1") == [0, 0]
    assert (cluster / "runs" / "weekly-1" / "best.safetensors").stat() == weights
    assert load_bundle(Path(f"{cluster / 'store'}@champion")).version == served.version


def test_the_next_job_begins_anew_and_what_is_no_better_is_held(cluster: Path) -> None:
    for job in ("weekly-1", "weekly-2"):
        assert start_pod(cluster, job) == [0, 0]
    decision = json.loads((cluster / "runs" / "weekly-2" / "decision.json").read_text(encoding="utf-8"))
    assert decision["decision"] == "HOLD"
    champion = json.loads((cluster / "store" / "aliases" / "champion.json").read_text(encoding="utf-8"))
    assert champion["bundle"] == Bundle.load(cluster / "runs" / "weekly-1" / "bundle").version


def test_a_pod_finds_its_rows_in_s3(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(monkeypatch) as url:
        for name in ("train.tsv", "frozen.tsv"):
            put(f"{url}/{name}", cluster / "data" / name)
        shutil.rmtree(cluster / "data")
        assert start_pod(cluster, "weekly-1", url) == [0, 0]
    version = Bundle.load(cluster / "runs" / "weekly-1" / "bundle").version
    assert load_bundle(Path(f"{cluster / 'store'}@champion")).version == version


def test_refused_rows_end_the_pod_before_any_promotion(cluster: Path) -> None:
    (cluster / "data" / "train.tsv").write_text("label\ttext\nwhat\tever\n", encoding="utf-8")
    (code,) = start_pod(cluster, "weekly-1")
    assert code in final_codes()
    assert not (cluster / "store").exists()
