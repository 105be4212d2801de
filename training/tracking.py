"""A copy of a run on an MLflow server, if `[tracking] mlflow` names one; otherwise nothing is imported or sent.

The run folder is what counts: a thread beside the training reads `metrics.jsonl` and sends what is new, so a slow or
dead server costs a warning and never a step. A resumed run goes on in the same MLflow run. Sent are settings, figures,
the model card and metrics.json: no text of the data, and no weights.
"""

import importlib.util
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lengnuan.training.config import TrainConfig
from lengnuan.training.distributed import is_first
from lengnuan.training.errors import UsageError
from lengnuan.training.files import write_text

log = logging.getLogger(__name__)

SECONDS_BETWEEN = 30.0
STATE = "mlflow.json"  # in the run folder: which MLflow run, and how many rows it has
MOST_METRICS, MOST_PARAMS, LONGEST_PARAM = 1000, 100, 500  # what one MLflow call takes

# MLflow reports its own use to its makers unless told not to, and tries a dead server for many minutes.
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


def check_tracking(config: TrainConfig) -> None:
    """Before anything starts.

    Raises:
        UsageError: MLflow is asked for and not installed.
    """
    if config.tracking.mlflow and importlib.util.find_spec("mlflow") is None:
        raise UsageError('tracking.mlflow needs MLflow: pip install "lengnuan[mlflow]"')


@contextmanager
def tracked(config: TrainConfig, run_folder: Path) -> Iterator[None]:
    """Send what the run logs inside, now and then and at the end; after an error the next run sends the rest.

    Of processes that train together the first alone sends.
    """
    if not config.tracking.mlflow or not is_first():
        yield
        return
    copy = RunCopy(config, run_folder)
    done = threading.Event()
    thread = threading.Thread(target=_keep_sending, args=(copy, done), name="mlflow", daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        done.set()  # not waited for: whoever stops a run has a grace period to keep
        raise
    done.set()
    thread.join()
    _attempt(copy.send_log)


def _keep_sending(copy: "RunCopy", done: threading.Event) -> None:
    while not done.wait(SECONDS_BETWEEN):
        if not _attempt(copy.send_log):
            return


def publish_bundle(config: TrainConfig, run_folder: Path, bundle: Path) -> None:
    """The finished bundle's figures, card and metrics.json; closes the MLflow run."""
    if config.tracking.mlflow:
        _attempt(lambda: RunCopy(config, run_folder).send_bundle(bundle))


def _attempt(send: Any) -> bool:
    """Whether it worked; tracking is no reason to lose a training, so any failure of MLflow's is a warning."""
    try:
        send()
    except Exception as error:
        log.warning("tracking: MLflow got nothing this time (%s: %s)", type(error).__name__, error)
        return False
    return True


class RunCopy:
    """The MLflow run that belongs to a run folder; made when it is first needed."""

    def __init__(self, config: TrainConfig, run_folder: Path) -> None:
        os.environ.update(_QUIET)
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        self._config = config
        self._folder = run_folder

    def send_log(self) -> None:
        """The complete rows of metrics.jsonl that it does not have yet."""
        from mlflow.entities import Metric

        file = self._folder / "metrics.jsonl"
        content = file.read_text(encoding="utf-8") if file.exists() else ""
        lines = content[: content.rfind("\n") + 1].splitlines()
        client, state = self._open()
        now = int(time.time() * 1000)
        metrics = [
            Metric(f"{row['stage']}/{key}", float(value), now, row["step"])
            for row in map(json.loads, lines[state["sent"] :])
            for key, value in row.items()
            if key not in ("stage", "step") and isinstance(value, int | float)
        ]
        for start in range(0, len(metrics), MOST_METRICS):
            client.log_batch(state["run_id"], metrics=metrics[start : start + MOST_METRICS])
        self._keep(state | {"sent": max(state["sent"], len(lines))})

    def send_bundle(self, bundle: Path) -> None:
        """What `publish_bundle` says."""
        self.send_log()
        client, state = self._open()
        found = json.loads((bundle / "report" / "metrics.json").read_text(encoding="utf-8"))
        for split, files in (("dev", found["dev"]), ("test", found["test"].get("files", {}))):
            for name, figures in files.items():
                for key in ("accuracy", "macro_f1", "ece"):
                    client.log_metric(state["run_id"], f"{split}/{name}/{key}", figures[key])
        for name in ("MODEL_CARD.md", "metrics.json"):
            client.log_artifact(state["run_id"], str(bundle / "report" / name))
        client.set_terminated(state["run_id"])

    def _open(self) -> tuple[Any, dict[str, Any]]:
        """The client, and the run's id and number of rows that were sent."""
        from mlflow.tracking import MlflowClient

        settings = self._config.tracking
        client = MlflowClient(tracking_uri=settings.mlflow)
        file = self._folder / STATE
        if file.exists():
            state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if state["server"] == settings.mlflow:
                return client, state
        experiment = client.get_experiment_by_name(settings.experiment)
        number = experiment.experiment_id if experiment else client.create_experiment(settings.experiment)
        run_id = client.create_run(number, run_name=self._config.name).info.run_id
        state = {"server": settings.mlflow, "run_id": run_id, "sent": 0}
        self._keep(state)
        self._send_settings(client, run_id)
        return client, state

    def _send_settings(self, client: Any, run_id: str) -> None:
        from mlflow.entities import Param

        dumped = self._config.model_dump(mode="json", exclude={"tracking": True, "data": {"root"}})
        params = [Param(key, value[:LONGEST_PARAM]) for key, value in _flat("", dumped) if value]
        for start in range(0, len(params), MOST_PARAMS):
            client.log_batch(run_id, params=params[start : start + MOST_PARAMS])

    def _keep(self, state: Mapping[str, Any]) -> None:
        write_text(self._folder / STATE, json.dumps(dict(state)) + "\n")


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """Dotted keys, as in `--set`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, inner)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
