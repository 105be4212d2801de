"""The MLflow registry follows the store; on MLflow's own store of files, which needs no server."""

import sys
from pathlib import Path
from typing import Any

import pytest
from promotion_fixtures import lenient, write_rows, write_variant

from lengnuan.model.bundle import Bundle
from lengnuan.training import __main__ as command
from lengnuan.training.errors import StoreBusy, UsageError
from lengnuan.training.registry import TAG, tell_registry


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return (tmp_path / "mlflow").as_uri()


def client(server: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=server, registry_uri=server)


def test_promotion_and_rollback_move_the_alias_of_the_same_name(tmp_path: Path, server: str) -> None:
    made = [write_variant(tmp_path / "second", 好看=-3.0, 影=3.0), write_variant(tmp_path / "third", 影=3.0)]
    data = ["--data", str(write_rows(tmp_path / "rows.tsv")), *lenient()]
    place = ["--store", str(tmp_path / "store"), "--mlflow", server, "--mlflow-model", "reviews"]
    for bundle in made:
        assert command.main(["promote", str(bundle), *place, *data]) == 0
    second, third = (Bundle.load(bundle).version for bundle in made)
    found = client(server).get_model_version_by_alias("reviews", "champion")
    assert (found.tags[TAG], found.source) == (third, f"{tmp_path / 'store'}/bundles/{third}")
    assert command.main(["rollback", *place]) == 0
    assert client(server).get_model_version_by_alias("reviews", "champion").tags[TAG] == second


def test_telling_it_again_adds_no_version(server: str) -> None:
    for _ in range(2):
        tell_registry(server, "reviews", "champion", "0123456789ab", "s3://bundles/reviews/bundles/0123456789ab")
    assert len(client(server).search_model_versions("name = 'reviews'")) == 1


def test_a_server_that_does_not_answer_is_tried_again_later(server: str) -> None:
    with pytest.raises(StoreBusy, match="could not be told"):
        tell_registry("http://127.0.0.1:9", "reviews", "champion", "0123456789ab", "/bundles/0123456789ab")


def test_without_mlflow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(UsageError, match=r"lengnuan\[mlflow\]"):
        tell_registry("http://127.0.0.1:9", "reviews", "champion", "0123456789ab", "/bundles/0123456789ab")
