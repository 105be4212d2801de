"""The copy on MLflow: asked for by one setting, complete, resumable, and never a reason to lose a training."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from small_runs import small_config

from lengnuan.training import tracking
from lengnuan.training.config import TrackingConfig, TrainConfig
from lengnuan.training.errors import UsageError
from lengnuan.training.tracking import check_tracking, publish_bundle, tracked


class Server:
    """Stands in for an MLflow server and its client."""

    def __init__(self) -> None:
        self.metrics: list[tuple[str, float, int]] = []
        self.params: dict[str, str] = {}
        self.files: list[str] = []
        self.ended: list[str] = []
        self.runs = 0
        self.dead = False

    def client(self, tracking_uri: str) -> "Server":
        if self.dead:
            raise ConnectionError(f"no answer from {tracking_uri}")
        return self

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return "1"

    def create_run(self, number: str, run_name: str) -> Any:
        self.runs += 1
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run {self.runs}"))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.metrics += [(metric.key, metric.value, metric.step) for metric in metrics]
        self.params |= {param.key: param.value for param in params}

    def log_metric(self, run_id: str, key: str, value: float) -> None:
        self.metrics.append((key, value, 0))

    def log_artifact(self, run_id: str, file: str) -> None:
        self.files.append(Path(file).name)

    def set_terminated(self, run_id: str) -> None:
        self.ended.append(run_id)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()
    entities, client = ModuleType("mlflow.entities"), ModuleType("mlflow.tracking")
    entities.Metric = lambda key, value, time, step: SimpleNamespace(key=key, value=value, step=step)  # type: ignore[attr-defined]
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]
    client.MlflowClient = found.client  # type: ignore[attr-defined]
    for name, module in {
        "mlflow": ModuleType("mlflow"),
        "mlflow.entities": entities,
        "mlflow.tracking": client,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in (*tracking._QUIET, *tracking._PATIENCE):
        monkeypatch.setenv(name, "unset")
    return found


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return small_config(tmp_path, tracking={"mlflow": "http://tracker:5000"})


def write_log(folder: Path, rows: int, tail: str = "") -> None:
    lines = [
        json.dumps({"stage": "fit", "step": step, "loss": 1.0 / step, "row_order": "00"}) for step in range(1, rows + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines) + tail, encoding="utf-8")


def test_rows_and_settings_are_sent_once(server: Server, config: TrainConfig, tmp_path: Path) -> None:
    for rows in (3, 5):
        with tracked(config, tmp_path):
            write_log(tmp_path, rows, tail='{"stage": "fit", "st')
    assert server.metrics == [("fit/loss", 1.0 / step, step) for step in range(1, 6)]
    assert server.runs == 1
    assert server.params["model.width"] == "16"
    assert not any(key.startswith("tracking") or key == "data.root" for key in server.params)


def test_a_dead_server_is_a_warning_and_gets_the_rest_later(
    server: Server, config: TrainConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.dead = True
    with tracked(config, tmp_path):
        write_log(tmp_path, 2)
    assert "MLflow got nothing this time" in caplog.text
    server.dead = False
    with tracked(config, tmp_path):
        write_log(tmp_path, 4)
    assert len(server.metrics) == 4


def test_the_log_is_sent_while_the_training_runs(
    server: Server, config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "SECONDS_BETWEEN", 0.001)
    write_log(tmp_path, 3)
    with tracked(config, tmp_path):
        for _ in range(10_000):
            if len(server.metrics) == 3:
                break
            tracking.time.sleep(0.001)
        assert len(server.metrics) == 3


def test_an_interrupted_run_ends_at_once_and_stays_open(server: Server, config: TrainConfig, tmp_path: Path) -> None:
    write_log(tmp_path, 2)
    with pytest.raises(KeyboardInterrupt), tracked(config, tmp_path):
        raise KeyboardInterrupt
    assert server.ended == []


def test_the_bundle_s_figures_close_the_run(server: Server, config: TrainConfig, tmp_path: Path) -> None:
    report = tmp_path / "bundle" / "report"
    report.mkdir(parents=True)
    scores = {"accuracy": 0.9, "macro_f1": 0.8, "ece": 0.01}
    (report / "metrics.json").write_text(json.dumps({"dev": {"a": scores}, "test": {}}), encoding="utf-8")
    publish_bundle(config, tmp_path, tmp_path / "bundle")
    assert ("dev/a/accuracy", 0.9, 0) in server.metrics
    assert server.files == ["MODEL_CARD.md", "metrics.json"]
    assert server.ended == ["run 1"]


def test_mlflow_s_own_telemetry_is_off(server: Server, config: TrainConfig, tmp_path: Path) -> None:
    with tracked(config, tmp_path):
        pass
    assert tracking.os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_without_the_setting_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # importing it would fail
    config = small_config(tmp_path)
    check_tracking(config)
    with tracked(config, tmp_path):
        write_log(tmp_path, 1)
    publish_bundle(config, tmp_path, tmp_path)
    assert not (tmp_path / "mlflow.json").exists()


def test_what_is_not_installed_is_said_before_anything_starts(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install \"lengnuan\[mlflow\]\""):
        check_tracking(config)


def test_a_password_in_the_address_is_refused() -> None:
    with pytest.raises(ValidationError, match="MLFLOW_TRACKING_PASSWORD"):
        TrackingConfig(mlflow="https://me:secret@tracker")
